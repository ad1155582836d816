// heed tokenize, and training on a vocabulary of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/doc_commands.h"
#include "support/shell.h"

namespace heed {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Tokenize : public testing::Test {
 protected:
  // tokens a=0, b=1, ab=2 over bytes.
  void SetUp() override {
    WriteText(folder_ / "vocab.json", R"({"a":0,"b":1,"ab":2,"\u0120":3})");
    WriteText(folder_ / "merges.txt", "a b\n");
    WriteText(folder_ / "text.txt", "ab a b");
  }
  ShellResult Run(const std::string& options) const {
    return Shell(folder_.path(), "$heed tokenize " + options);
  }
  const TemporaryFolder folder_;
};

TEST_F(Tokenize, ShowsIdsBytesAndPieces) {
  const ShellResult plain = Run("--tokenizer vocab.json --text 'aab a'");
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("      id  bytes  piece\n"));
  EXPECT_THAT(plain.out, HasSubstr("       2  61 62  \"ab\"\n"));
  EXPECT_THAT(plain.out,
              HasSubstr("4 tokens of 5 bytes, 1.25 bytes a token; a bpe vocabulary of 4"));
  EXPECT_THAT(Run("--tokenizer byte --text ab").out,
              HasSubstr("2 tokens of 2 bytes, 1 byte a token; a byte vocabulary of 256\n"));
  const json document = json::parse(Run("--tokenizer . --text 'aab a' --json").out);
  EXPECT_EQ(document["ids"], (json{0, 2, 3, 0}));
  EXPECT_EQ(document["pieces"], (json{"a", "ab", " ", "a"}));
  EXPECT_EQ(document["bytes"][1], (json{0x61, 0x62}));
  EXPECT_EQ(document["tokens"], 4);
  EXPECT_EQ(document["text_bytes"], 5);
}

TEST_F(Tokenize, DecodesAndCounts) {
  EXPECT_EQ(Run("--tokenizer vocab.json --decode '2 3,0'").out, "ab a");
  EXPECT_EQ(json::parse(Run("--tokenizer vocab.json --decode '[2, 3]' --json").out)["text"], "ab ");
  EXPECT_EQ(json::parse(Run("text.txt text.txt --tokenizer . --count --json").out)["tokens"], 10);
  EXPECT_EQ(json::parse(Run("text.txt --tokenizer byte --count --json").out)["tokens"], 6);
}

TEST_F(Tokenize, RefusesInOneLine) {
  const auto error = [this](const std::string& options) {
    const ShellResult result = Run(options);
    EXPECT_EQ(result.exit_code, 2) << options;
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_THAT(error("--text a"), HasSubstr("--tokenizer: found nothing"));
  EXPECT_THAT(error("--tokenizer ."), HasSubstr("found 0 of them, expected one of them"));
  EXPECT_THAT(error("text.txt --tokenizer . --text a"), HasSubstr("found 2 of them"));
  EXPECT_THAT(error("--tokenizer . --decode '1 4'"), HasSubstr("\"4\", expected ids from 0 to 3"));
  EXPECT_THAT(error("--tokenizer . --decode '1 x'"), HasSubstr("\"x\""));
  EXPECT_THAT(error("--tokenizer . --text abc"), HasSubstr("byte 0x63"));
  EXPECT_THAT(error("--tokenizer gpt2 --text a"), HasSubstr("nothing is downloaded"));
}

TEST_F(Tokenize, TrainsOnItsOwnVocabulary) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "the fox said " + std::to_string(i % 17) + " to the dog\n";
  WriteText(folder_ / "corpus.txt", text);
  const std::string train =
      "$heed train corpus.txt --tokenizer bpe --n-layer 1 --n-head 1 --n-embd 8 --block-size 8 "
      "--batch-size 2 --max-iters 2 --eval-iters 1 --quiet ";
  const ShellResult run = Shell(folder_.path(), train + "--vocab-size 280 --out run --threads 1");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json vocabulary = json::parse(ReadText(folder_ / "run/tokenizer.json"));
  EXPECT_EQ(vocabulary["model"]["vocab"].size(), 280u);
  EXPECT_EQ(vocabulary["model"]["merges"].size(), 24u);
  EXPECT_EQ(Shell(folder_.path(), train + "--vocab-size 280 --out two --threads 2").exit_code, 0);
  EXPECT_EQ(ReadText(folder_ / "two/tokenizer.json"), ReadText(folder_ / "run/tokenizer.json"));
  EXPECT_THAT(ReadText(folder_ / "run/config.toml"), HasSubstr("vocab_size = 280"));
  EXPECT_EQ(Shell(folder_.path(), "$heed train --resume run --max-iters 3 --quiet").exit_code, 0);
  const ShellResult sample =
      Shell(folder_.path(), "$heed generate run --prompt 'the fox' --max-tokens 5 --json");
  EXPECT_EQ(json::parse(sample.out)["samples"][0]["tokens"].size(), 5u) << sample.err;
  EXPECT_EQ(Shell(folder_.path(), "$heed eval run corpus.txt --json").exit_code, 0);
  EXPECT_EQ(json::parse(Run("--tokenizer run --text 'the fox' --json").out)["pieces"].size(),
            json::parse(sample.out)["samples"][0]["prompt_tokens"].size());
  EXPECT_EQ(Shell(folder_.path(), "$heed convert run run.gguf --quiet").exit_code, 0);
  EXPECT_EQ(Run("--tokenizer run.gguf --text 'the fox' --json").out,
            Run("--tokenizer run --text 'the fox' --json").out);
  const ShellResult gguf =
      Shell(folder_.path(), "$heed train corpus.txt --tokenizer run.gguf --out g");
  EXPECT_EQ(gguf.exit_code, 2);
  EXPECT_THAT(gguf.err, HasSubstr("run.gguf: found a GGUF file"));
  const ShellResult beside =
      Shell(folder_.path(), "$heed train corpus.txt --vocab-size 280 --out x");
  EXPECT_EQ(beside.exit_code, 2);
  EXPECT_THAT(beside.err, HasSubstr("vocab_size: found 280 beside the tokenizer 'char'"));
}

// Every command of docs/tokenizers.md runs as it stands there.
TEST_F(Tokenize, ItsPageRuns) {
  std::filesystem::create_directory(folder_ / "build");
  std::filesystem::create_symlink(HEED_PROGRAM, folder_ / "build/heed");
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += "Once upon a time the fox said " + std::to_string(i) + ".\n";
  WriteText(folder_ / "input.txt", text);
  const std::string small =
      " --n-layer 1 --n-head 1 --n-embd 8 --block-size 8 --max-iters 2 --eval-iters 1 --quiet";
  const ShellResult first = Shell(folder_.path(), "$heed train input.txt --out runs/first" + small);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const std::vector<std::string> commands = DocCommands("docs/tokenizers.md");
  EXPECT_EQ(commands.size(), 3u);
  for (const std::string& command : commands) {
    const bool train = command.find(" train ") != std::string::npos;
    const ShellResult result = Shell(folder_.path(), command + (train ? small : ""));
    EXPECT_EQ(result.exit_code, 0) << command << "\n" << result.err;
  }
}

}  // namespace
}  // namespace heed
