#include "io/digest.h"

#include <gtest/gtest.h>

#include "support/shell.h"

namespace heed {
namespace {

std::string HexOf(Digest digest, const std::string& text) {
  // In two pieces.
  const auto bytes = std::as_bytes(std::span(text));
  digest.Update(bytes.first(bytes.size() / 2));
  digest.Update(bytes.subspan(bytes.size() / 2));
  return digest.Hex();
}

// The examples of FIPS 180-2, appendix B.
TEST(Digest, Sha256OfPublishedVectors) {
  EXPECT_EQ(HexOf(Digest::Sha256(), "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HexOf(Digest::Sha256(), "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(HexOf(Digest::Sha256(), std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(HexOf(Digest::Sha256(), ""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// The empty blob's name is in every git repository; the other is the example of Pro Git, 10.2.
TEST(Digest, GitNamesBlobs) {
  EXPECT_EQ(HexOf(Digest::GitBlob(0), ""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(HexOf(Digest::GitBlob(13), "test content\n"),
            "d670460b4b4aece5915caf5c68d12f560a9fe3e4");
}

TEST(Digest, AFileHasItsContentOrNot) {
  const TemporaryFolder folder;
  WriteText(folder / "f", "test content\n");
  const std::string hash = "d670460b4b4aece5915caf5c68d12f560a9fe3e4";
  EXPECT_TRUE(HasContent(folder / "f", 13, hash));
  EXPECT_FALSE(HasContent(folder / "f", 12, hash));
  EXPECT_FALSE(HasContent(folder / "none", 13, hash));
  EXPECT_FALSE(HasContent(folder.path(), 13, hash));
  WriteText(folder / "f", "test contenT\n");
  EXPECT_FALSE(HasContent(folder / "f", 13, hash));
}

}  // namespace
}  // namespace heed
