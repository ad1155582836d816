#include "report/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/samples.h"
#include "report/summary.h"
#include "report/table.h"

namespace heed {
namespace {

RunRecord Record(const std::string& name, std::vector<double> val_losses, double speed) {
  RunRecord run;
  run.name = name;
  run.settings = {{"seed", "1"}, {"position", name}};
  for (size_t i = 0; i < val_losses.size(); ++i) {
    MetricsRow row;
    row.iter = static_cast<int64_t>(100 * i);
    row.tokens = 1000 * row.iter;
    row.train_loss = val_losses[i] + 0.5;
    row.val_loss = val_losses[i];
    row.tokens_per_second = speed;
    run.rows.push_back(row);
  }
  return run;
}

ModelConfig SmallModel() {
  ModelConfig model;
  model.n_layer = 3;
  model.n_head = 6;
  model.n_kv_head = 2;
  model.n_embd = 12;
  model.vocab_size = 7;
  EXPECT_TRUE(model.Resolve());
  return model;
}

TEST(Compare, SaysWhatDiffersAndWhatItDid) {
  std::vector<RunRecord> runs = {Record("learned", {4, 3, 2.5}, 1000),
                                 Record("rope", {4, 2.4, 2.0, 1.9}, 900)};
  for (RunRecord& run : runs) run.model = SmallModel();
  const auto differences = DifferencesOf(runs);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].setting, "position");
  EXPECT_THAT(differences[0].values, testing::ElementsAre("learned", "rope"));
  EXPECT_EQ(EffectOf(runs[1], runs[0]),
            "rope beside learned: held-out loss -0.6000 nats per token, perplexity -45.1 %; after "
            "200k tokens each -0.5000 nats per token, perplexity -39.3 %; it passed the other's "
            "last loss after 100 of 300 updates; 1.11 times slower.");
  runs[1].settings.push_back({"dropout", "0.1"});
  EXPECT_EQ(DifferencesOf(runs).size(), 1u);
  runs[1].data = {"another.txt"};
  EXPECT_EQ(EffectOf(runs[1], runs[0]),
            "rope beside learned: trained on different texts, so their losses do not compare");
}

// An n-gram model has no settings of layers, and no updates.
TEST(Compare, CountsAreSpokenOfInTokens) {
  const std::vector<RunRecord> runs = {Record("small", {4, 3}, 0), Record("large", {4, 2, 1}, 0)};
  EXPECT_EQ(EffectOf(runs[1], runs[0]),
            "large beside small: held-out loss -2.0000 nats per token, perplexity -86.5 %; after "
            "100k tokens each -1.0000 nats per token, perplexity -63.2 %; it passed the other's "
            "last loss after 100,000 of 200,000 tokens.");
  for (const auto& row : FigureTable(runs).rows) {
    const bool least = row[0] == "least held-out loss";
    if (row[0] == "updates" || least) {
      EXPECT_EQ(row[2], least ? "1" : "-");
    }
  }
}

TEST(Compare, FiguresAreOfTheRows) {
  RunRecord run = Record("a", {4, 2, 3}, 10);
  run.rows[1].tokens_per_second = 1000;
  run.model = SmallModel();
  const RunFigures f = FiguresOf(run);
  EXPECT_EQ(f.cache_elements, 2 * 3 * 2 * 2);
  EXPECT_EQ(f.val_loss, 3);
  EXPECT_EQ(f.best_val_loss, 2);
  EXPECT_EQ(f.best_iter, 100);
  EXPECT_EQ(f.train_loss, 3.5);
  EXPECT_EQ(f.tokens_per_second, 10);
}

// The training loss of tables is where the bold curve of pictures ends.
TEST(Compare, TheTrainingLossIsAMeanOfTheLastRows) {
  RunRecord run{"a", "a", {}, {}, {}, {}};
  for (int i = 0; i < 100; ++i) {
    run.rows.emplace_back();
    run.rows.back().train_loss = i % 2 == 0 ? 1 : 3;
  }
  EXPECT_DOUBLE_EQ(FiguresOf(run).train_loss, (3 + 1 + 3) / 3.0);
  run.rows.back().train_loss = std::nan("");  // left out, as in pictures
  EXPECT_DOUBLE_EQ(FiguresOf(run).train_loss, (1 + 3) / 2.0);
}

TEST(Compare, SpeedIsAsFastOrSlower) {
  const std::pair<double, const char*> cases[] = {{1000, "; as fast."},
                                                  {1001, "; as fast."},
                                                  {2500, "; 2.50 times as fast."},
                                                  {9.5, "; 105 times slower."},
                                                  {800, "; 1.25 times slower."}};
  for (const auto& [speed, words] : cases) {
    const std::string effect = EffectOf(Record("b", {4, 3}, speed), Record("a", {4, 3}, 1000));
    EXPECT_THAT(effect, testing::EndsWith(words));
  }
}

// Stopped between two rows, before its first evaluation behind that of fresh weights.
TEST(Compare, AStoppedRunHasTheUpdatesOfItsCheckpoint) {
  std::vector<RunRecord> runs = {Record("a", {4, 3}, 0), Record("b", {4, 3}, 0)};
  for (RunRecord& run : runs) run.model = SmallModel();
  runs[1].rows[1].val_loss.reset();
  runs[1].rows[1].train_loss = 3;
  runs[1].updates = 107;
  const RunFigures f = FiguresOf(runs[1]);
  EXPECT_EQ(f.updates, 107);
  EXPECT_EQ(f.tokens, 107000);
  EXPECT_FALSE(f.val_loss);
  EXPECT_FALSE(f.best_val_loss);
  EXPECT_EQ(EffectOf(runs[1], runs[0]),
            "b beside a: training loss (mean) -0.5000 nats per token, perplexity -39.3 %, for not "
            "both have a held-out one yet.");
}

TEST(Sheet, DistinctRunsAreCountedInWords) {
  const std::string text = "the cat and the cat\nand the dog";
  const DistinctRuns one = CountDistinctRuns(text, 1), three = CountDistinctRuns(text, 3);
  EXPECT_EQ(one.distinct, 4);
  EXPECT_EQ(one.total, 8);
  // the cat and, cat and the, and the cat, the cat and, cat and the, and the dog
  EXPECT_EQ(three.distinct, 4);
  EXPECT_EQ(three.total, 6);
  EXPECT_EQ(CountDistinctRuns("two words", 3).share(), 1);
}

const Table kTable{"t", {"name", "v|1"}, {{"a \"b\"", "<1>"}, {"c", "22"}}};

TEST(Table, TextIsAlignedAndCutToItsWidth) {
  EXPECT_EQ(TableText(kTable, 100), "name   v|1\na \"b\"  <1>\nc       22\n");
  const Table wide{"", {"n", "v"}, {{"a", std::string(50, 'x')}}, {"v"}};
  EXPECT_EQ(TableText(wide, 20), "n  v\na  " + std::string(16, 'x') + ".\n");
}

TEST(Table, WordsAreFlushLeftBesideNumbers) {
  const Table table{
      "", {"n", "axes", "size"}, {{"q", "B T", "48"}, {"scores", "B", "7"}}, {"axes"}};
  EXPECT_EQ(TableText(table, 100), "n       axes  size\nq       B T     48\nscores  B        7\n");
  EXPECT_EQ(TableMarkdown(table).substr(0, 50),
            "| n | axes | size |\n| --- | --- | ---: |\n| q | B T");
  EXPECT_NE(TableHtml(table).find("<td class=\"word\">B T</td><td>48</td>"), std::string::npos);
}

TEST(Table, ColumnsThatDoNotFitStandBelow) {
  const Table wide{"", {"name", "one", "two", "three"}, {{"a", "1", "2", "3"}}};
  EXPECT_EQ(TableText(wide, 15), "name  one  two\na       1    2\n\nname  three\na         3\n");
}

TEST(Table, MarkdownCsvAndHtmlEscapeWhatTheyMust) {
  EXPECT_EQ(TableMarkdown(kTable),
            "| name | v\\|1 |\n| --- | ---: |\n| a \"b\" | \\<1> |\n| c | 22 |\n");
  EXPECT_EQ(TableCsv(kTable),
            "\"t\",\"a \"\"b\"\"\",\"v|1\",\"<1>\"\r\n\"t\",\"c\",\"v|1\",\"22\"\r\n");
  EXPECT_THAT(TableHtml(kTable), testing::HasSubstr("<td>&lt;1&gt;</td>"));
}

}  // namespace
}  // namespace heed
