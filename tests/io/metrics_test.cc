#include "io/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace heed {
namespace {

std::string Refusal(const std::string& text) {
  const auto rows = ParseMetrics(text, "metrics.jsonl");
  return rows ? "accepted" : rows.error().Message();
}

TEST(Metrics, ALineHasTheNamesOfTheContract) {
  const MetricsRow row{.iter = 20,
                       .tokens = 15360,
                       .train_loss = 2.5,
                       .perplexity = 12.25,
                       .val_loss = 2.75,
                       .val_perplexity = 15.5,
                       .lr = 0.001,
                       .grad_norm = 0.5,
                       .tokens_per_second = 1e5,
                       .elapsed_s = 1.25};
  EXPECT_EQ(MetricsLine(row),
            R"({"iter":20,"tokens":15360,"train_loss":2.5,"perplexity":12.25,"val_loss":2.75,)"
            R"("val_perplexity":15.5,"lr":0.001,"grad_norm":0.5,"tokens_per_second":100000,)"
            R"("elapsed_s":1.25})"
            "\n");
  MetricsRow bare = row;
  bare.val_loss = bare.val_perplexity = std::nullopt;
  EXPECT_EQ(MetricsLine(bare).find("val_"), std::string::npos);

  const auto read =
      ParseMetrics(MetricsLine(row) + MetricsLine({.iter = 21, .train_loss = 1}), "x");
  ASSERT_TRUE(read);
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ(MetricsLine((*read)[0]), MetricsLine(row));
  EXPECT_FALSE((*read)[1].val_loss);
}

TEST(Metrics, ACutLastLineIsIgnored) {
  const std::string first = "{\"iter\":1,\"train_loss\":2}\n",
                    second = "{\"iter\":2,\"train_loss\":1}";
  for (size_t cut = 0; cut < second.size(); ++cut) {
    const auto rows = ParseMetrics(first + second.substr(0, cut), "x");
    ASSERT_TRUE(rows) << cut;
    EXPECT_EQ(rows->size(), 1u) << cut;
  }
  EXPECT_EQ(ParseMetrics(first + second, "x")->size(), 2u);
  EXPECT_TRUE(ParseMetrics("", "x")->empty());
}

TEST(Metrics, MissingAndNullNumbers) {
  const auto rows = ParseMetrics(
      "\n{\"iter\":1,\"train_loss\":null,\"other\":[1]}\r\n"
      "{\"iter\":2,\"train_loss\":2,\"val_loss\":1}\n",
      "x");
  ASSERT_TRUE(rows);
  EXPECT_TRUE(std::isnan((*rows)[0].train_loss));
  EXPECT_DOUBLE_EQ((*rows)[1].perplexity, 7.38905609893065);        // e^2
  EXPECT_DOUBLE_EQ(*(*rows)[1].val_perplexity, 2.718281828459045);  // e
}

TEST(Metrics, ARunThatWentOnFromAnOlderCheckpointReplacesItsRows) {
  const auto rows = ParseMetrics(
      "{\"iter\":1,\"train_loss\":5}\n{\"iter\":2,\"train_loss\":4}\n"
      "{\"iter\":3,\"train_loss\":3}\n{\"iter\":2,\"train_loss\":9}\n",
      "x");
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[1].iter, 2);
  EXPECT_EQ((*rows)[1].train_loss, 9);
}

TEST(Metrics, ErrorsNameFileAndLine) {
  const std::string good = "{\"iter\":1,\"train_loss\":2}\n";
  EXPECT_EQ(Refusal(good + "{\"iter\":\n" + good),
            "metrics.jsonl:2: found a broken line, expected one JSON object; remove the line");
  EXPECT_EQ(Refusal("[1]\n"),
            "metrics.jsonl:1: found a broken line, expected one JSON object; remove the line");
  EXPECT_EQ(Refusal("{\"train_loss\":1}\n"),
            "metrics.jsonl:1: iter: found nothing, expected a count");
  EXPECT_EQ(Refusal("{\"iter\":-1,\"train_loss\":1}\n"),
            "metrics.jsonl:1: iter: found -1, expected a count");
  EXPECT_EQ(Refusal("{\"iter\":1.5,\"train_loss\":1}\n"),
            "metrics.jsonl:1: iter: found 1.5, expected a count");
  EXPECT_EQ(Refusal("{\"iter\":1}\n"),
            "metrics.jsonl:1: train_loss: found nothing, expected a number");
  EXPECT_EQ(Refusal(good + "{\"iter\":2,\"train_loss\":\"low\"}\n"),
            "metrics.jsonl:2: train_loss: found string, expected a number");
}

}  // namespace
}  // namespace heed
