// Baselines, heed compare, heed report and the maps of heed attention, from training on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/shell.h"

namespace heed {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Runs of a few updates on a short text, trained once for all tests.
class Runs : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    std::string text;
    for (int i = 0; i < 300; ++i) text += "the fox & <hound> number " + std::to_string(i) + "\n";
    WriteText(*folder_ / "text.txt", text);
    const std::string train =
        "$heed train text.txt --quiet --threads 1 --n-layer 2 --n-head 2 --n-embd 16 "
        "--block-size 16 --batch-size 4 --max-iters 6 --eval-interval 3 --eval-iters 2 "
        "--log-interval 1 ";
    for (const char* run : {"--out gpt", "--out gqa --n-kv-head 1 --position rope",
                            "--out averaged --model averaged"}) {
      const ShellResult result = Shell(folder_->path(), train + run);
      EXPECT_EQ(result.exit_code, 0) << result.err;
    }
    for (const char* run : {"--out bigram --model bigram-embedding --n-embd 8 --max-iters 6",
                            "--out ngram --model ngram --order 4"}) {
      const ShellResult result = Run("train text.txt --quiet --block-size 16 " + std::string(run));
      EXPECT_EQ(result.exit_code, 0) << result.err;
    }
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static ShellResult Run(const std::string& arguments) {
    return Shell(folder_->path(), "$heed " + arguments);
  }
  static json Json(const std::string& arguments) {
    const ShellResult result = Run(arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out, nullptr, false);
  }
  static std::string Refusal(const std::string& arguments) {
    const ShellResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.out;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  }

  static TemporaryFolder* folder_;
};
TemporaryFolder* Runs::folder_ = nullptr;

// The second word fills the line of 40 columns to its end; the space behind it makes no line.
TEST_F(Runs, TextOnATerminalWrapsBetweenWords) {
  const std::string line = std::string(19, 't') + " " + std::string(20, 'h');
  const std::string shown = OnTerminal(
      folder_->path(),
      "$heed generate gpt --quiet --max-tokens 1 --prompt '" + line + " fox  fox\n  fox'", 40);
  EXPECT_THAT(shown, HasSubstr(line + "\nfox  fox\n  fox"));
}

TEST_F(Runs, EveryKindOfModelIsEvaluatedAndWrites) {
  for (const std::string run : {"gpt", "gqa", "averaged", "bigram", "ngram"}) {
    const json eval = Json("eval " + run + " text.txt");
    EXPECT_GT(eval["loss"], 0) << run;
    EXPECT_LT(eval["loss"], 5) << run;
    const json written = Json("generate " + run + " --prompt the --temperature 0 --max-tokens 30");
    EXPECT_EQ(written["samples"][0]["tokens"].size(), 30u) << run;
    EXPECT_EQ(written["samples"][0]["entropy"], 0) << run;
    EXPECT_TRUE(Json("info " + run).contains("tokenizer")) << run;
    EXPECT_EQ(Run("plot " + run + " --overwrite").exit_code, 0) << run;
  }
  // Four characters tell the rest of a line by heart.
  EXPECT_LT(Json("eval ngram text.txt")["loss"], 0.4);
  EXPECT_EQ(Json("eval ngram text.txt")["stride"], 1);
  EXPECT_EQ(Run("plot gpt averaged ngram --x tokens --out all.svg").exit_code, 0);
}

// A run's end, its report and its comparison name the same loss by the same words.
TEST_F(Runs, OneLossIsSaidFirstEverywhere) {
  const ShellResult trained =
      Run("train text.txt --quiet --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --max-iters 1 "
          "--out once");
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, testing::StartsWith("once: 1 update in "));
  EXPECT_THAT(trained.out, HasSubstr(", training loss (last update) "));
  const size_t begin = trained.out.find("held-out loss "), end = trained.out.find(')', begin);
  ASSERT_NE(end, std::string::npos) << trained.out;
  const std::string loss = trained.out.substr(begin, end + 1 - begin);
  const std::string number = loss.substr(14, loss.find(' ', 14) - 14);
  ASSERT_EQ(Run("report once --no-ablate --max-tokens 2").exit_code, 0);
  EXPECT_THAT(ReadText(*folder_ / "once/report.html"), HasSubstr("<p>once: " + loss + ".</p>"));
  EXPECT_THAT(ReadText(*folder_ / "once/report.md"),
              HasSubstr("- once: " + loss + ".\n\n## Figures"));
  EXPECT_THAT(ReadText(*folder_ / "once/report.csv"),
              HasSubstr("\"held-out loss\",\"once\",\"" + number + "\""));
  EXPECT_THAT(Run("plot once --metric loss").out, HasSubstr("held-out " + number));
}

TEST_F(Runs, EvalTakesWhatTrainTakes) {
  // The evaluations of this run read all that is held out.
  ASSERT_EQ(Run("train builtin:adder --quiet --n-layer 1 --n-head 1 --n-embd 8 --max-iters 2 --out "
                "adder")
                .exit_code,
            0);
  const std::string metrics = ReadText(*folder_ / "adder/metrics.jsonl");
  const json last = json::parse(metrics.substr(metrics.rfind('{')));
  const json sums = Json("eval adder builtin:adder");
  EXPECT_NEAR(sums["loss"], last["val_loss"], 1e-6);
  EXPECT_NEAR(sums["bits_per_byte"], last["val_bits_per_byte"], 1e-6);
  EXPECT_EQ(sums["tokens"], 500 * 3);  // digits of the answers
  EXPECT_EQ(sums["stride"], 6);

  ASSERT_EQ(Run("train builtin:stories --quiet --model ngram --order 3 --out stories").exit_code,
            0);
  const ShellResult stories = Run("eval stories builtin:stories");
  EXPECT_THAT(stories.out, HasSubstr(" held-out tokens of 488 KiB\n"));
  // Three characters know less than all.
  EXPECT_GT(Json("eval stories builtin:stories")["loss"], 0.3);

  std::filesystem::create_directory(*folder_ / "texts");
  for (const char* name : {"texts/a", "texts/b"}) WriteText(*folder_ / name, "the fox\n");
  EXPECT_EQ(Json("eval gpt texts"), Json("eval gpt texts/a texts/b"));

  EXPECT_THAT(Refusal("eval adder builtin:addr"), HasSubstr("did you mean builtin:adder?"));
  EXPECT_THAT(Refusal("eval adder builtin:adder text.txt"), HasSubstr("among others"));
  EXPECT_THAT(Refusal("eval adder builtin:adder --separator x"), HasSubstr("--separator"));
  EXPECT_THAT(Refusal("eval gpt builtin:adder"), HasSubstr("the ten digits"));
}

TEST_F(Runs, EvalSaysWhatATinyTextCannotTell) {
  WriteText(*folder_ / "two.txt", "th");
  const ShellResult tiny = Run("eval gpt two.txt --json");
  const json figures = json::parse(tiny.out);
  EXPECT_EQ(figures["tokens"], 1);
  EXPECT_NEAR(figures["bits_per_byte"], figures["loss"].get<double>() / std::log(2.0) / 2, 1e-12);
  EXPECT_THAT(tiny.err, HasSubstr("here 1 of 2 bytes"));
  EXPECT_EQ(Run("eval gpt text.txt").err, "");
}

TEST_F(Runs, HelpNamesTheSettingsOfBuiltInTexts) {
  // The page's lines joined.
  const std::string help = Run("train --help | tr '\\n' ' '").out;
  EXPECT_THAT(help, HasSubstr("builtin:stories --position rope --batch-size 16 --max-iters 6000 "
                              "--learning-rate 0.004 --min-lr 1e-05; builtin:adder --batch-size 64 "
                              "--max-iters 6000 --learning-rate 0.002; --recipe fast "));
}

TEST_F(Runs, OneBlockOfAModelStandsForAll) {
  const std::string text = Run("info gpt").out;
  EXPECT_THAT(text, HasSubstr("\nh.0.ln_1.weight "));
  EXPECT_THAT(text, HasSubstr("\nh.1 is like h.0\n"));
  EXPECT_EQ(text.find("h.1.ln_1.weight"), std::string::npos);
  EXPECT_THAT(Json("info gpt")["tensors"].dump(), HasSubstr("\"h.1.ln_1.weight\""));
}

using LessonRow16 = Runs;
using LessonRow26 = Runs;

// Perplexity is exp of the mean loss; every prompt is continued at every temperature.
TEST_F(LessonRow16, CurvesAndASheetOfPromptsAndTemperatures) {
  std::istringstream rows(ReadText(*folder_ / "gpt/metrics.jsonl"));
  int read = 0;
  for (std::string line; std::getline(rows, line); ++read) {
    const json row = json::parse(line);
    EXPECT_NEAR(row["perplexity"], std::exp(row["train_loss"].get<double>()), 1e-9);
  }
  EXPECT_EQ(read, 7);
  const json eval = Json("eval gpt text.txt");
  EXPECT_NEAR(eval["perplexity"], std::exp(eval["loss"].get<double>()), 1e-9);
  const json sheet = Json(
      "generate gpt --prompt the --prompt fox --prompt hound --prompt number --temperature 0 "
      "--temperature "
      "1 --num-samples 2 --max-tokens 20");
  ASSERT_EQ(sheet["samples"].size(), 4u * 2 * 2);
  ASSERT_EQ(Run("report gpt --no-ablate --prompt the --prompt fox --temperature 0 --temperature 1 "
                "--max-tokens 20 --out sheet.html")
                .exit_code,
            0);
  const std::string table = ReadText(*folder_ / "sheet.csv");
  for (const char* row : {"the at 0", "the at 1", "fox at 0", "fox at 1"}) {
    for (const char* figure : {"repetition", "distinct 1", "entropy"}) {
      const std::string line = "\"gpt: samples\",\"" + std::string(row) + "\",\"" + figure + "\"";
      EXPECT_THAT(table, HasSubstr(line));
    }
  }
}

// Four claims with four kinds of evidence, and a text that was held out.
TEST_F(LessonRow26, ShapesLossTextAndMemoryAreMeasuredApart) {
  const json ledger = Json("ledger gqa --batch-size 4");
  EXPECT_EQ(ledger["tensors"][0]["shape"], json::parse("[4, 16, 16]"));
  EXPECT_GT(ledger["bytes_training"], 4 * ledger["parameters"].get<int64_t>() * 4);
  const std::string metrics = ReadText(*folder_ / "gqa/metrics.jsonl");
  const json last = json::parse(metrics.substr(metrics.rfind('{')));
  EXPECT_GT(last["train_loss"], 0);
  // The end of the text, which no batch came from.
  EXPECT_GT(last["val_loss"], 0);
  EXPECT_NE(last["val_loss"], last["train_loss"]);
  EXPECT_EQ(Json("generate gqa --prompt the --max-tokens 5")["samples"][0]["tokens"].size(), 5u);
  EXPECT_EQ(Run("check gqa").exit_code, 0);
}

TEST_F(Runs, WhatIsNotForABaselineIsRefused) {
  EXPECT_THAT(Refusal("train text.txt --model ngram --n-layer 2 --out x"), HasSubstr("--n-layer"));
  EXPECT_THAT(Refusal("train text.txt --model gpt --order 2 --out x"), HasSubstr("order"));
  EXPECT_THAT(Refusal("train text.txt --model ngram --order 0 --out x"), HasSubstr("1 to 16"));
  EXPECT_THAT(Refusal("train builtin:adder --model ngram --out x"), HasSubstr("not text"));
  EXPECT_THAT(Refusal("train --resume ngram"), HasSubstr("model: found ngram"));
  EXPECT_THAT(Refusal("logits ngram --text the --out x.safetensors"), HasSubstr("n-gram"));
  EXPECT_THAT(Refusal("check bigram"), HasSubstr("bigram-embedding"));
  EXPECT_THAT(Refusal("attention bigram --text the"), HasSubstr("bigram-embedding"));
}

TEST_F(Runs, AnNgramRunsSettingsMakeItAgain) {
  ASSERT_EQ(Run("train --config ngram/config.toml --quiet --out again").exit_code, 0);
  EXPECT_EQ(ReadText(*folder_ / "again/model.safetensors"),
            ReadText(*folder_ / "ngram/model.safetensors"));
}

TEST_F(Runs, CompareNamesWhatDiffersInLinesOfAtMost100) {
  const json document = Json("compare gpt gqa");
  EXPECT_EQ(document["settings"]["position"], json({"learned", "rope"}));
  EXPECT_EQ(document["settings"]["n_kv_head"], json({"2", "1"}));
  EXPECT_EQ(document["runs"][0]["cache_elements_per_position"], 2 * 2 * 2 * 8);
  EXPECT_EQ(document["runs"][1]["cache_elements_per_position"], 2 * 2 * 1 * 8);
  EXPECT_THAT(document["effects"][0].get<std::string>(), HasSubstr("gqa beside gpt: held-out"));
  std::istringstream lines(Run("compare gpt gqa averaged bigram ngram").out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_GT(count, 20);
  EXPECT_THAT(Refusal("compare gpt"), HasSubstr("two runs"));
  EXPECT_THAT(Refusal("compare gpt nowhere"), HasSubstr("no metrics.jsonl"));
}

// The last row is that of update 10; the checkpoint is written behind update 13.
TEST_F(Runs, CompareCountsTheUpdatesOfAStoppedRun) {
  const ShellResult stopped =
      Run("train text.txt --n-layer 1 --n-head 2 --n-embd 16 --block-size 16 --max-iters 13 "
          "--checkpoint-interval 13 --quiet --out whole && cp -r whole cut && grep -v 'iter\":13' "
          "whole/metrics.jsonl > cut/metrics.jsonl");
  ASSERT_EQ(stopped.exit_code, 0) << stopped.err;
  const json document = Json("compare whole cut");
  EXPECT_EQ(document["runs"][1]["updates"], 13);
  EXPECT_EQ(document["runs"][1]["tokens"], document["runs"][0]["tokens"]);
}

TEST_F(Runs, MapsOfAModel) {
  const json maps = Json("attention gqa --text 'the fox' --ablate --out maps.safetensors");
  ASSERT_EQ(maps["heads"].size(), 4u);
  EXPECT_TRUE(maps["heads"][3].contains("loss_change"));
  EXPECT_EQ(maps["loss_tokens"], 6);
  const ShellResult one = Run("attention gqa --text 'the fox' --layer 1 --head 0 --out maps.svg");
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("layer 1, head 0"));
  // Each token stands left of the map and below it; of a whole grid at its left and lower edge.
  const auto labels = [&](const char* file, const std::string& token) {
    const std::string svg = ReadText(*folder_ / file), text = ">" + token + "<";
    int count = 0;
    for (size_t at = 0; (at = svg.find(text, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_THAT(ReadText(*folder_ / "maps.svg"), HasSubstr("layer 1 head 0"));
  EXPECT_EQ(labels("maps.svg", "x"), 2);
  EXPECT_EQ(labels("maps.svg", "_"), 2);
  EXPECT_EQ(Run("attention gqa --text 'the fox' --out grid.svg").exit_code, 0);
  EXPECT_EQ(labels("grid.svg", "x"), 2 + 2);  // two rows of maps, two columns
  EXPECT_THAT(Refusal("attention gqa --text the --layer 2"), HasSubstr("--layer: found 2"));
  EXPECT_THAT(Refusal("attention gqa --layer 1"), HasSubstr("neither"));
  EXPECT_THAT(Refusal("attention gqa --text the --n-head 2"), HasSubstr("--n-head"));
  EXPECT_THAT(Refusal("attention gqa --text the --out maps.jpg"), HasSubstr(".svg"));
}

TEST_F(Runs, AReportIsOnePageThatNeedsNothingElse) {
  const ShellResult result =
      Run("report gpt gqa ngram --prompt 'the fox & <' --temperature 0 --temperature 1 "
          "--max-tokens 20 --out page.html");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string page = ReadText(*folder_ / "page.html");
  for (const char* outside : {"http", "src=", "url(", "<script", "<link", "@import"}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
  EXPECT_THAT(page, HasSubstr("the fox &amp; &lt;"));
  EXPECT_EQ(page.find("fox & <"), std::string::npos);
  // Maps stand layer by layer: as many columns as heads.
  EXPECT_THAT(page, HasSubstr("grid-template-columns: repeat(var(--heads), "));
  EXPECT_THAT(page, HasSubstr("<div class=\"maps\" style=\"--heads: 2\">\n<figure>"));
  for (const char* part : {"<h2>Figures", "<h2>Settings", "<h2>Prompts", "<h2>Shapes", "<h2>Memory",
                           "<h2>Heads", "does not explain"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  const std::string csv = ReadText(*folder_ / "page.csv");
  EXPECT_THAT(csv,
              HasSubstr("\"gqa: memory\",\"key/value cache, one sequence\",\"bytes\",\"2,048\""));
  EXPECT_THAT(csv, HasSubstr("\"gqa: memory\",\"key/value cache, one sequence\",\"measured\","
                             "\"2,048 held\""));
  EXPECT_THAT(ReadText(*folder_ / "page.md"), HasSubstr("| held-out loss |"));
  EXPECT_THAT(Refusal("report gpt --out page.html --max-tokens 3"), HasSubstr("page.html"));
}

TEST_F(Runs, InitMayChangeContextAndDropoutAlone) {
  EXPECT_EQ(Run("train text.txt --quiet --init gqa --block-size 40 --dropout 0.1 --max-iters 2 "
                "--out longer")
                .exit_code,
            0);
  EXPECT_EQ(Json("info longer")["config"]["block_size"], 40);
  EXPECT_THAT(Refusal("train text.txt --init gqa --n-layer 3 --out x"), HasSubstr("n_layer"));
}

}  // namespace
}  // namespace heed
