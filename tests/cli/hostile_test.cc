// Requests of clumsy and hostile users, each named after the fault that it once met.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/shell.h"

namespace heed {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Hostile : public testing::Test {
 protected:
  Hostile() {
    std::string text;
    for (int i = 0; i < 100; ++i) text += "a cab; bad ace\n";
    WriteText(folder_ / "t.txt", text);
  }

  ShellResult Run(const std::string& line) { return Shell(folder_.path(), line); }
  // Trains a model of a few numbers into `name`.
  void Train(const std::string& name, const std::string& more = "") {
    const ShellResult result = Run("$heed train t.txt " + kTiny + " --out " + name + " " + more);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  // The one line that `line` is refused with, within seconds.
  std::string Refusal(const std::string& line) {
    const ShellResult result = Run("timeout 30 " + line);
    EXPECT_EQ(result.exit_code, 2) << line << result.err;
    EXPECT_THAT(result.err, StartsWith("heed: ")) << line;
    EXPECT_EQ(result.err.find('\n') + 1, result.err.size()) << line << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("internal"))) << line;
    return result.err;
  }

  const std::string kTiny = "--preset femto --block-size 4 --max-iters 1 --eval-iters 1 --quiet";
  TemporaryFolder folder_;
};

TEST_F(Hostile, NamesCannotCommandTheTerminal) {
  EXPECT_EQ(Refusal("$heed eval \"$(printf 'no\\033[2J\\377x')\" t.txt"),
            "heed: no?[2J?x: found nothing, expected a model's folder with config.json and "
            "model.safetensors\n");
}

TEST_F(Hostile, AnEmptyNameIsNamed) {
  EXPECT_EQ(Refusal("$heed info ''"), "heed: [MODEL]: found an empty name, expected a name\n");
  EXPECT_THAT(Refusal("$heed train t.txt --preset '' --out x"),
              HasSubstr("--preset: found an emp"));
  EXPECT_THAT(Refusal("$heed ''"), StartsWith("heed: '': found unknown command"));
}

TEST_F(Hostile, AnOverlongOutIsRefused) {
  const std::string name(300, 'x');
  EXPECT_THAT(Refusal("$heed train t.txt " + kTiny + " --out " + name), HasSubstr("too long"));
  EXPECT_THAT(Refusal("$heed plot " + name), HasSubstr("too long"));
}

TEST_F(Hostile, JsonTakesWhatIsNotUtf8) {
  Train("run", "--tokenizer byte");
  const ShellResult result =
      Run("$heed generate run --prompt \"$(printf 'a\\377b')\" --max-tokens 2 --json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out, nullptr, false)["samples"][0]["prompt"],
            "a\xEF\xBF\xBD"
            "b");
}

TEST_F(Hostile, ASamplePromptOutsideTheVocabularyLeavesNoFolder) {
  EXPECT_THAT(Refusal("$heed train t.txt " + kTiny + " --sample-prompt Z --out run"),
              StartsWith("heed: --sample-prompt: found character U+005A"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(Hostile, SizesThatCannotBeHadAreRefusedAtOnce) {
  const std::string train = "$heed train t.txt " + kTiny + " --out run ";
  EXPECT_THAT(Refusal(train + "--n-layer 2147483648"), StartsWith("heed: n_layer: found 2147"));
  EXPECT_THAT(Refusal(train + "--grad-accum 1048576 --batch-size 1048576"),
              HasSubstr("of batches that the system does not give"));
  EXPECT_THAT(Refusal(train + "--n-embd 1000000"), HasSubstr("that the system does not give"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
  Train("small");
  EXPECT_THAT(Refusal("$heed generate small --prompt a --max-tokens 9223372036854775807"),
              HasSubstr("expected 0 to 1000000000"));
}

TEST_F(Hostile, DeepJsonIsRefused) {
  Train("run");
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  for (const char* file : {"config.json", "tokenizer.json"}) {
    Run("rm -rf bad; cp -r run bad");
    WriteText(folder_ / ("bad/" + std::string(file)), "{\"model\":" + deep + "}");
    EXPECT_THAT(Refusal("$heed generate bad --prompt a"), HasSubstr("nested deeper than 32"));
  }
  Run("rm -rf bad; cp -r run bad; rm bad/model.safetensors");
  WriteText(folder_ / "bad/model.safetensors.index.json", "{\"weight_map\":{\"a\":" + deep + "}}");
  EXPECT_THAT(Refusal("$heed generate bad --prompt a"), HasSubstr("nested deeper than 32"));
  WriteText(folder_ / "deep.jsonl", "{\"iter\":" + deep + "}\n");
  EXPECT_THAT(Refusal("$heed plot deep.jsonl"), HasSubstr("iter: found array"));
}

TEST_F(Hostile, AnIndexWithoutShardsIsRefused) {
  Train("run");
  Run("rm run/model.safetensors");
  WriteText(folder_ / "run/model.safetensors.index.json", "{\"weight_map\":{}}");
  EXPECT_THAT(Refusal("$heed generate run --prompt a"), HasSubstr("found no weight_map"));
}

// Embeddings are often padded beyond the vocabulary.
TEST_F(Hostile, RowsWithoutATokenAreNeverDrawn) {
  Train("chars");
  Train("padded", "--tokenizer byte");
  Run("cp chars/tokenizer.json padded");
  const ShellResult result =
      Run("$heed generate padded --prompt a --temperature 5 --max-tokens 300 --json --quiet");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto document = nlohmann::json::parse(result.out, nullptr, false);
  for (const int token : document["samples"][0]["tokens"]) EXPECT_LT(token, 8);
}

TEST_F(Hostile, EvalNamesTheFile) {
  Train("run");
  WriteText(folder_ / "odd.txt", "cab\xff");
  WriteText(folder_ / "one.txt", "a");
  EXPECT_THAT(Refusal("$heed eval run t.txt odd.txt"),
              StartsWith("heed: odd.txt: found byte 0xFF at offset 3"));
  EXPECT_THAT(Refusal("$heed eval run odd.txt --separator b"),
              StartsWith("heed: odd.txt: found byte 0xFF at offset 3"));
  EXPECT_THAT(Refusal("$heed eval run one.txt"), StartsWith("heed: one.txt: found 1 byte,"));
}

TEST_F(Hostile, OneRunAtATimeHoldsAFolder) {
  Train("run");
  for (const char* line : {"$heed train --resume run", "$heed train t.txt --overwrite --out run"}) {
    const ShellResult result = Run("flock run " + std::string(line));
    EXPECT_EQ(result.exit_code, 2) << line;
    EXPECT_THAT(result.err, StartsWith("heed: run: found a run that is going on in it")) << line;
  }
  EXPECT_EQ(Run("$heed train --resume run --quiet").exit_code, 0);
}

TEST_F(Hostile, AnExtendedRunIsStillLongerAfterBeingStopped) {
  Train("run");
  const ShellResult stopped =
      Run("timeout 60 $heed train --resume run --max-iters 100000000 --quiet & pid=$!; "
          "until [ $(wc -l < run/metrics.jsonl) -gt 9 ]; do sleep 0.02; done; kill -TERM $pid; "
          "wait $pid");
  EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
  const ShellResult resumed =
      Run("timeout --foreground -s INT 2 $heed train --resume run 2>&1 | cat");
  EXPECT_THAT(resumed.out, HasSubstr("settings  100,000,000 updates"));
  EXPECT_THAT(resumed.out, HasSubstr("; from update 1 on at the least learning rate"));
  EXPECT_THAT(resumed.out, HasSubstr("go on with: " HEED_PROGRAM " train --resume run"));
}

TEST_F(Hostile, ARecipeIsKnownByNameAndWrittenDown) {
  EXPECT_THAT(Refusal("$heed train t.txt --recipe slow --out run"),
              HasSubstr("--recipe: found 'slow', expected fast"));
  EXPECT_THAT(Refusal("$heed train t.txt --optimizer muon --learning-rate 0 --out run"),
              HasSubstr("learning_rate: found 0, expected a number above 0"));
  ASSERT_EQ(Run("$heed train t.txt --preset femto --recipe fast --position none --max-iters 3 "
                "--block-size 4 --out run --quiet")
                .exit_code,
            0);
  const std::string toml = ReadText(folder_ / "run/config.toml");
  EXPECT_THAT(toml, HasSubstr("optimizer = \"muon\""));
  EXPECT_THAT(toml, HasSubstr("position = \"none\""));
  EXPECT_THAT(toml, HasSubstr("max_iters = 3 "));
}

TEST_F(Hostile, AModelToStartFromKeepsItsVocabulary) {
  Train("run");
  EXPECT_THAT(Refusal("$heed train t.txt --init run --tokenizer byte --out next"),
              HasSubstr("--init: found tokenizer beside it, expected the model's own vocabulary"));
}

// Whether it happens before or after the file is mapped.
TEST_F(Hostile, AModelCutShortWhileItIsReadIsAnError) {
  Train("run");
  const ShellResult result =
      Run("\"$heed\" generate run --prompt a --max-tokens 100000000 --threads 1 --quiet >out & "
          "p=$!; sleep 0.5; : >run/model.safetensors; wait $p");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("run/model.safetensors"));
}

TEST_F(Hostile, AModelCutShortAfterItWasMappedIsNamed) {
  Train("run");
  const ShellResult result =
      Run("\"$heed\" generate run --prompt a --max-tokens 100000000 --threads 1 --quiet >out & "
          "p=$!; until grep -q model.safetensors /proc/$p/maps; do sleep 0.01; done; sleep 0.2; "
          ": >run/model.safetensors; wait $p");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err,
            "heed: run/model.safetensors: the file was cut short while it was read, expected its "
            "bytes to stay; copy it first\n");
}

// 130 is a shell's word for an end by SIGINT. A batch of so many rows takes longer than both.
TEST_F(Hostile, TheSecondInterruptEndsAtOnceAndSaysHowToGoOn) {
  const std::string train =
      "$heed train t.txt --preset femto --block-size 4 --batch-size 4096 --grad-accum 4096 "
      "--eval-iters 1 --threads 1 --out run";
  const std::string twice =
      " & p=$!; until [ -f run/checkpoint/state.safetensors ]; do sleep 0.01; done; sleep 0.3; "
      "kill -INT $p; sleep 0.1; kill -0 $p && kill -INT $p; wait $p";
  const ShellResult result = Run(train + twice);
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.err, HasSubstr("\nstopped at once; the last checkpoint is of 0 updates, go on "
                                    "with: " HEED_PROGRAM " train --resume run\n"));
  const ShellResult quiet = Run("rm -r run; " + train + " --quiet" + twice);
  EXPECT_EQ(quiet.exit_code, 130);
  EXPECT_EQ(quiet.err, "");
}

TEST_F(Hostile, AResumeWithNothingLeftSaysSo) {
  Train("run");
  EXPECT_THAT(Run("$heed train --resume run").err,
              HasSubstr("none is left, --max-iters N goes further"));
}

TEST_F(Hostile, ADivergedStepCanBeReplayed) {
  const ShellResult result =
      Run("$heed train t.txt " + kTiny + " --max-iters 50 --learning-rate 1e30 --out 'my run'");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr(" at index "));
  const size_t begin = result.err.find("heed logits"), end = result.err.find("; a smaller");
  ASSERT_NE(end, std::string::npos) << result.err;
  const std::string replay = "\"$heed\"" + result.err.substr(begin + 4, end - begin - 4);
  const ShellResult again = Run(replay);
  EXPECT_EQ(again.exit_code, 0) << replay << again.err;
}

TEST_F(Hostile, FewerThreadsThanAskedForStillWork) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more address space than the limit leaves";
#endif
  const ShellResult result = Run("ulimit -v 1000000; $heed info --threads 1024 --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(nlohmann::json::parse(result.out, nullptr, false)["threads"], 1024);
}

}  // namespace
}  // namespace heed
