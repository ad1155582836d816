#include "base/mapped_file.h"

#include <gtest/gtest.h>

#include <utility>

#include "support/shell.h"

namespace heed {
namespace {

TEST(MappedFile, AnAddressInItIsNamedWhileItIsMapped) {
  const TemporaryFolder folder;
  const std::string path = folder / "numbers", other = folder / "others";
  WriteText(path, std::string(10000, 'n'));
  WriteText(other, "o");
  const std::byte* begin = nullptr;
  {
    MappedFile file = *MappedFile::Open(path);
    const MappedFile second = *MappedFile::Open(other);
    begin = file.bytes().data();
    EXPECT_STREQ(MappedFileAt(begin), path.c_str());
    EXPECT_STREQ(MappedFileAt(begin + 9999), path.c_str());
    EXPECT_STREQ(MappedFileAt(second.bytes().data()), other.c_str());
    EXPECT_EQ(MappedFileAt(nullptr), nullptr);
    EXPECT_EQ(MappedFileAt(&folder), nullptr);
    const MappedFile moved = std::move(file);
    EXPECT_STREQ(MappedFileAt(begin), path.c_str());
  }
  EXPECT_EQ(MappedFileAt(begin), nullptr);
}

TEST(MappedFile, MoreFilesThanPlacesAreMappedAllTheSame) {
  const TemporaryFolder folder;
  WriteText(folder / "a\nb", "text");
  std::vector<MappedFile> files;
  for (int i = 0; i < 300; ++i) files.push_back(*MappedFile::Open(folder / "a\nb"));
  // The name is one line.
  EXPECT_EQ(std::string(MappedFileAt(files[0].bytes().data())).find('\n'), std::string::npos);
  EXPECT_EQ(files[299].text(), "text");
  EXPECT_EQ(MappedFileAt(files[299].bytes().data()), nullptr);
  files.clear();
  const MappedFile again = *MappedFile::Open(folder / "a\nb");
  EXPECT_NE(MappedFileAt(again.bytes().data()), nullptr);
}

}  // namespace
}  // namespace heed
