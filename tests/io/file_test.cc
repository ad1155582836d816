#include "io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "support/temporary_folder.h"

namespace heed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Status WriteText(const std::string& path, std::string_view text, bool overwrite) {
  return WriteFileAtomically(path, std::span(&text, 1), overwrite);
}

std::vector<std::string> Names(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename());
  }
  return names;
}

TEST(AtomicFile, WritesPiecesAndLeavesNothingElse) {
  const TemporaryFolder folder;
  const std::vector<std::string_view> pieces = {"one ", "", "two"};
  ASSERT_TRUE(WriteFileAtomically(folder / "f", pieces, false));
  EXPECT_EQ(ReadFile(folder / "f", 7).value(), "one two");
  EXPECT_THAT(Names(folder), ElementsAre("f"));
}

TEST(AtomicFile, RefusesAnExistingFileUnlessOverwriteIsGiven) {
  const TemporaryFolder folder;
  ASSERT_TRUE(WriteText(folder / "f", "old", false));
  const Status refused = WriteText(folder / "f", "new", false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().Message(),
            folder / "f" + ": exists already; use --overwrite to replace it");
  EXPECT_EQ(ReadFile(folder / "f", 10).value(), "old");
  ASSERT_TRUE(WriteText(folder / "f", "new", true));
  EXPECT_EQ(ReadFile(folder / "f", 10).value(), "new");
  EXPECT_THAT(Names(folder), ElementsAre("f"));
}

TEST(AtomicFile, KeepsAFileThatCameToBeMeanwhile) {
  const TemporaryFolder folder;
  Result<AtomicFile> file = AtomicFile::Create(folder / "f", false);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->Write("late"));
  std::ofstream(folder / "f") << "first";
  const Status committed = file->Commit();
  ASSERT_FALSE(committed);
  EXPECT_THAT(committed.error().Message(), HasSubstr("--overwrite"));
  EXPECT_EQ(ReadFile(folder / "f", 10).value(), "first");
}

TEST(AtomicFile, IsHiddenUntilCommittedAndGoneWhenGivenUp) {
  const TemporaryFolder folder;
  {
    Result<AtomicFile> file = AtomicFile::Create(folder / "f.safetensors", false);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->Write("half"));
    const std::vector<std::string> names = Names(folder);
    ASSERT_EQ(names.size(), 1u);
    EXPECT_TRUE(names[0].starts_with(".f.safetensors.")) << names[0];
    EXPECT_TRUE(names[0].ends_with(".heed-tmp")) << names[0];
  }
  EXPECT_THAT(Names(folder), IsEmpty());
}

TEST(AtomicFile, TwoWritersOfOneNameDoNotMeet) {
  const TemporaryFolder folder;
  Result<AtomicFile> one = AtomicFile::Create(folder / "f", true);
  Result<AtomicFile> two = AtomicFile::Create(folder / "f", true);
  ASSERT_TRUE(one && two);
  ASSERT_TRUE(one->Write("one") && two->Write("two"));
  ASSERT_TRUE(two->Commit() && one->Commit());
  EXPECT_EQ(ReadFile(folder / "f", 10).value(), "one");
}

TEST(AtomicFile, SaysWhatIsInTheWay) {
  const TemporaryFolder folder;
  EXPECT_THAT(WriteText(folder / "no/f", "", false).error().Message(),
              HasSubstr("its folder does not exist"));
  EXPECT_THAT(WriteText(folder.path(), "", true).error().Message(), HasSubstr("a directory"));
  EXPECT_THAT(WriteText(folder / "new/", "", true).error().Message(), HasSubstr("folder's name"));
  EXPECT_THAT(WriteText("", "", true).error().Message(), HasSubstr("a file's name"));
  EXPECT_THAT(WriteText("/dev/null", "", true).error().Message(), HasSubstr("not a regular file"));
  ASSERT_EQ(symlink("nowhere", (folder / "link").c_str()), 0);
  EXPECT_THAT(WriteText(folder / "link", "", false).error().Message(), HasSubstr("--overwrite"));
}

TEST(AtomicFile, ReadOnlyFolder) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TemporaryFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0500), 0);
  EXPECT_THAT(WriteText(folder / "f", "", false).error().Message(), HasSubstr("not writable"));
}

TEST(AtomicFile, AFailedWriteLeavesNothing) {
  const TemporaryFolder folder;
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {1000, old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = WriteText(folder / "f", std::string(5000, 'x'), false);
  setrlimit(RLIMIT_FSIZE, &old_limit);
  signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kIo);
  EXPECT_THAT(status.error().Message(), HasSubstr("cannot be written"));
  EXPECT_THAT(Names(folder), IsEmpty());
}

TEST(AtomicFile, ANameOfFullLength) {
  const TemporaryFolder folder;
  const std::string name(255, 'n');
  ASSERT_TRUE(WriteText(folder / name, "x", false));
  EXPECT_THAT(Names(folder), ElementsAre(name));
}

TEST(ReadFile, ChecksItsCapAndSaysWhatIsWrong) {
  const TemporaryFolder folder;
  ASSERT_TRUE(WriteText(folder / "f", "12345", false));
  EXPECT_EQ(ReadFile(folder / "f", 5).value(), "12345");
  EXPECT_THAT(ReadFile(folder / "f", 4).error().Message(), HasSubstr("found 5 bytes"));
  EXPECT_THAT(ReadFile(folder / "none", 4).error().Message(), HasSubstr("no such file"));
  EXPECT_THAT(ReadFile(folder.path(), 4).error().Message(), HasSubstr("a directory"));
}

}  // namespace
}  // namespace heed
