#include "data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "text/byte_tokenizer.h"
#include "text/char_tokenizer.h"
#include "text/utf8.h"

namespace heed {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class CorpusTest : public testing::Test {
 protected:
  CorpusTest() : root_(fs::path(testing::TempDir()) / ("corpus_" + std::to_string(getpid()))) {
    fs::create_directories(root_);
  }
  ~CorpusTest() override { fs::remove_all(root_); }

  std::string Write(const std::string& name, const std::string& text) {
    const fs::path path = root_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  static std::string ErrorOf(std::vector<std::string> paths) {
    const auto corpus = Corpus::Open(paths);
    return corpus ? "" : corpus.error().Message();
  }
  static std::vector<int32_t> All(const TokenStore& store) {
    std::vector<int32_t> ids(static_cast<size_t>(store.size()));
    store.Read(0, store.size(), ids.data());
    return ids;
  }

  fs::path root_;
};

TEST_F(CorpusTest, FilesAndFoldersInOrder) {
  Write("d/b.txt", "B");
  Write("d/a/z.txt", "Z");
  Write("d/c.txt", "C");
  Write("d/.hidden", "no");
  Write("d/.git/config", "no");
  Write("d/empty.txt", "");
  const std::string last = Write("last.txt", "L");
  const auto corpus = Corpus::Open(std::vector<std::string>{(root_ / "d").string(), last});
  ASSERT_TRUE(corpus.has_value()) << corpus.error().Message();
  std::string text;
  for (const Corpus::Part& part : corpus->parts()) text += part.text;
  EXPECT_EQ(text, "ZBCL");
  EXPECT_EQ(corpus->bytes(), 4);
}

TEST_F(CorpusTest, LinksThatLeadNowhereAreNoFiles) {
  Write("d/a.txt", "A");
  fs::create_symlink("gone.txt", root_ / "d/dangling.txt");
  fs::create_symlink("ring.txt", root_ / "d/ring.txt");
  fs::create_symlink("user@host.1234", root_ / "d/.#a.txt");
  Write("elsewhere/b.txt", "B");
  fs::create_symlink("../elsewhere/b.txt", root_ / "d/b.txt");
  const auto corpus = Corpus::Open(std::vector<std::string>{(root_ / "d").string()});
  ASSERT_TRUE(corpus.has_value()) << corpus.error().Message();
  std::string text;
  for (const Corpus::Part& part : corpus->parts()) text += part.text;
  EXPECT_EQ(text, "AB");
  // What may be there and cannot be looked at is not left out in silence.
  fs::create_symlink(std::string(300, 'x'), root_ / "d/long.txt");
  EXPECT_THAT(ErrorOf({(root_ / "d").string()}), HasSubstr("cannot be listed"));
}

TEST_F(CorpusTest, SaysWhatIsWrongWithASource) {
  EXPECT_THAT(ErrorOf({(root_ / "none.txt").string()}), HasSubstr("none.txt: no such file"));
  EXPECT_THAT(ErrorOf({Write("empty.txt", "")}), HasSubstr("empty.txt: found an empty file"));
  fs::create_directories(root_ / "bare");
  EXPECT_THAT(ErrorOf({(root_ / "bare").string()}), HasSubstr("a folder without text"));
  const std::string pipe = (root_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf({pipe}), HasSubstr("pipe: found not a regular file"));
  const std::string locked = Write("locked.txt", "x");
  ASSERT_EQ(chmod(locked.c_str(), 0), 0);
  if (access(locked.c_str(), R_OK) != 0) {
    EXPECT_THAT(ErrorOf({locked}), HasSubstr("Permission denied"));
  }
}

TEST_F(CorpusTest, FindsTheFirstBadByte) {
  // Far enough in that the second piece holds it; a second fault later must not win.
  std::string text(700'000, 'x');
  text[600'001] = '\xC0';
  text[650'000] = '\xFF';
  const std::string bad = Write("bad.txt", text), good = Write("good.txt", "\xC3\xA9t\xC3\xA9");
  for (int threads : {1, 3}) {
    SetNumThreads(threads);
    const auto corpus = *Corpus::Open(std::vector<std::string>{good, bad});
    const auto characters = DistinctCharacters(corpus);
    ASSERT_FALSE(characters.has_value());
    EXPECT_EQ(characters.error().where, bad);
    EXPECT_THAT(characters.error().Message(), HasSubstr("byte 0xC0 at offset 600001"));
    const auto store = TokenStore::Make(corpus, **CharTokenizer::FromText("x\xC3\xA9t"), {});
    ASSERT_FALSE(store.has_value());
    EXPECT_EQ(store.error().Message(), characters.error().Message());
  }
  SetNumThreads(HardwareThreads());
  EXPECT_THAT(*DistinctCharacters(*Corpus::Open(std::vector<std::string>{good})),
              ElementsAre(U't', U'\u00E9'));
}

// A text with characters of 1 to 4 bytes, longer than several pieces.
std::string MixedText() {
  std::string text;
  for (int i = 0; i < 300'000; ++i) {
    AppendUtf8(i % 7 == 0 ? 0x1F600 + i % 50 : i % 3 == 0 ? 0x400 + i % 200 : 'a' + i % 26, &text);
  }
  return text;
}

TEST_F(CorpusTest, StoreEqualsTheWholeTextsTokensForAnyThreads) {
  const std::string text = MixedText();
  const Corpus corpus = Corpus::FromString("mixed", text);
  const auto tokenizer = *CharTokenizer::FromText(text);
  const CharTokenizer from_corpus(*DistinctCharacters(corpus));
  EXPECT_EQ(from_corpus.Fingerprint(), tokenizer->Fingerprint());
  const std::vector<int32_t> want = *tokenizer->Encode(text);
  for (int threads : {1, 2, 5}) {
    SetNumThreads(threads);
    const auto store = TokenStore::Make(corpus, *tokenizer, {});
    ASSERT_TRUE(store.has_value());
    EXPECT_TRUE(store->in_memory());
    EXPECT_EQ(store->width(), 2);
    EXPECT_EQ(All(*store), want);
    const auto on_disk = TokenStore::Make(corpus, *tokenizer, {root_.string(), 1000});
    ASSERT_TRUE(on_disk.has_value()) << on_disk.error().Message();
    EXPECT_FALSE(on_disk->in_memory());
    EXPECT_TRUE(fs::is_empty(root_));  // unlinked
    EXPECT_EQ(All(*on_disk), want);
    int32_t three[3];
    on_disk->Read(123'456, 3, three);
    EXPECT_THAT(three, ElementsAre(want[123'456], want[123'457], want[123'458]));
  }
  SetNumThreads(HardwareThreads());
}

TEST_F(CorpusTest, StoreKeepsIdsOfEveryWidth) {
  std::string text;
  for (char32_t code = 0; code < 70'000; ++code) {
    if (code < 0xD800 || code >= 0xE000) AppendUtf8(code, &text);
  }
  const struct {
    size_t characters;
    int width;
  } cases[] = {{256, 1}, {257, 2}, {65'536, 2}, {65'537, 4}};
  for (const auto& c : cases) {
    std::string some = text;
    size_t bytes = 0, seen = 0;
    for (; seen < c.characters; ++seen)
      bytes += NextUtf8(std::string_view(text).substr(bytes, 4)).length;
    some.resize(bytes);
    const auto store =
        *TokenStore::Make(Corpus::FromString("t", some), **CharTokenizer::FromText(some), {});
    EXPECT_EQ(store.width(), c.width);
    ASSERT_EQ(store.size(), static_cast<int64_t>(c.characters));
    const std::vector<int32_t> ids = All(store);
    for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], static_cast<int32_t>(i));
  }
}

TEST_F(CorpusTest, StoreReportsAFolderThatCannotBeWritten) {
  const auto store = TokenStore::Make(Corpus::FromString("t", "abc"), ByteTokenizer(),
                                      {(root_ / "nowhere").string(), 0});
  ASSERT_FALSE(store.has_value());
  EXPECT_EQ(store.error().kind, ErrorKind::kIo);
  EXPECT_THAT(store.error().Message(), HasSubstr("nowhere"));
}

TEST(SplitTokens, CutsAsNanoGptDoes) {
  const Split split = *SplitTokens(1'115'394, 0.1, 64, "t");  // tinyshakespeare's length
  EXPECT_EQ(split.train, 1'003'854);
  EXPECT_EQ(split.val, 111'540);
  const Split half = *SplitTokens(5, 0.5, 1, "t");
  EXPECT_EQ(half.train, 2);
  EXPECT_EQ(half.val, 3);
}

TEST(SplitTokens, EachSplitNeedsBlockSizePlusOne) {
  EXPECT_TRUE(SplitTokens(20, 0.5, 9, "t").has_value());
  const auto split = SplitTokens(20, 0.5, 10, "t");
  ASSERT_FALSE(split.has_value());
  EXPECT_THAT(split.error().Message(),
              HasSubstr("10 tokens for training and 10 for validation, expected at least "
                        "block_size + 1 = 11 in each"));
  for (double fraction : {0.0, 1.0, -0.1, std::nan("")}) {
    EXPECT_FALSE(SplitTokens(1000, fraction, 1, "t").has_value());
  }
}

TEST(LessonRow01, TinyShakespeare) {
  const char* folder = std::getenv("HEED_DATA");
  if (folder == nullptr) GTEST_SKIP() << "HEED_DATA names no folder with tinyshakespeare.txt";
  const std::vector<std::string> paths = {std::string(folder) + "/tinyshakespeare.txt"};
  const auto corpus = Corpus::Open(paths);
  ASSERT_TRUE(corpus.has_value()) << corpus.error().Message();
  const CharTokenizer tokenizer(*DistinctCharacters(*corpus));
  EXPECT_EQ(tokenizer.vocab_size(), 65);
  const auto store = *TokenStore::Make(*corpus, tokenizer, {});
  EXPECT_EQ(store.size(), 1'115'394);
  EXPECT_EQ(store.width(), 1);
  EXPECT_EQ(SplitTokens(store.size(), 0.1, 256, "t")->train, 1'003'854);
  // nanoGPT's shakespeare_char: "First Citizen" begins 18 47 56 57 58.
  int32_t first[5];
  store.Read(0, 5, first);
  EXPECT_THAT(first, ElementsAre(18, 47, 56, 57, 58));
}

}  // namespace
}  // namespace heed
