#include "report/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "report/chart_svg.h"
#include "report/format.h"
#include "support/shell.h"

namespace heed {
namespace {

MetricsRow At(int64_t iter, double loss) {
  return {.iter = iter, .tokens = 10 * iter, .train_loss = loss, .perplexity = std::exp(loss)};
}

// A straight line from `from` to `to` over iterations 0, 10, ... 10·(n-1), held out at every fifth.
RunCurve Straight(const std::string& name, double from, double to, int n) {
  RunCurve run{name, {}};
  for (int i = 0; i < n; ++i) {
    run.rows.push_back(At(10 * i, from + (to - from) * i / (n - 1)));
    if (i % 5 == 0) run.rows.back().val_loss = run.rows.back().train_loss + 0.5;
  }
  return run;
}

// A picture alone in its file.
std::vector<Picture> Panel(std::span<const RunCurve> runs, const PlotRequest& request) {
  return {MakePicture(runs, request)};
}

const Series* Find(const Picture& picture, const std::string& label) {
  for (const Series& series : picture.series) {
    if (series.label == label) return &series;
  }
  return nullptr;
}

TEST(Plot, SmoothingIsAMeanOfNeighbours) {
  std::vector<double> y(100);
  for (size_t i = 0; i < y.size(); ++i) y[i] = i % 2 == 0 ? 1 : 3;
  const std::vector<double> means = Smoothed(y);
  // A window of 2 on each side: (1+3+1+3+1)/5 and (3+1+3+1+3)/5 by turns.
  EXPECT_DOUBLE_EQ(means[50], 1.8);
  EXPECT_DOUBLE_EQ(means[51], 2.2);
  EXPECT_DOUBLE_EQ(means[0], 1);
  EXPECT_DOUBLE_EQ(means[99], (1 + 3) / 2.0 * 2 / 3 + 3 / 3.0);  // 3, 1, 3
  EXPECT_EQ(Smoothed(std::vector<double>{5, 1, 4}), (std::vector<double>{5, 1, 4}));
}

TEST(Plot, PerplexityIsTheExponentialOfTheMean) {
  RunCurve run{"r", {}};
  for (int i = 0; i < 100; ++i) run.rows.push_back(At(i, i % 2 == 0 ? 1 : 3));
  const Picture picture = MakePicture(std::vector{run}, {.metric = PlotMetric::kPerplexity});
  const Series* train = Find(picture, "training (mean)");
  ASSERT_NE(train, nullptr);
  EXPECT_DOUBLE_EQ(train->y[50], std::exp(1.8));
}

TEST(Plot, APictureHoldsTheRunsPoints) {
  const std::vector runs = {Straight("a", 4, 2, 21), Straight("b", 4, 3, 11)};
  const Picture picture = MakePicture(runs, {.x = PlotX::kTokens, .floor = 1.5});
  EXPECT_EQ(picture.series.size(), 4u);
  const Series* held_out = Find(picture, "a held-out");
  ASSERT_NE(held_out, nullptr);
  EXPECT_EQ(held_out->x, (std::vector<double>{0, 500, 1000, 1500, 2000}));
  EXPECT_EQ(held_out->y, (std::vector<double>{4.5, 4, 3.5, 3, 2.5}));
  EXPECT_EQ(picture.floor, 1.5);
  EXPECT_FALSE(picture.log_y);
  const Picture perplexity =
      MakePicture(runs, {.metric = PlotMetric::kPerplexity, .x = PlotX::kTokens, .floor = 1.5});
  EXPECT_DOUBLE_EQ(*perplexity.floor, std::exp(1.5));
  EXPECT_TRUE(perplexity.log_y);  // e^4.5 is more than 8 times e^2
  EXPECT_FALSE(
      MakePicture(std::vector{Straight("c", 2, 1, 11)}, {.metric = PlotMetric::kPerplexity})
          .log_y);  // e^2.5 / e < 8
}

TEST(Plot, PointsThatAreNotFiniteAreLeftOut) {
  RunCurve run{"r", {At(0, 3), At(1, std::nan("")), At(2, 2000), At(3, 1)}};
  const Picture loss = MakePicture(std::vector{run}, {});
  EXPECT_EQ(Find(loss, "training")->x, (std::vector<double>{0, 2, 3}));
  const Picture perplexity = MakePicture(std::vector{run}, {.metric = PlotMetric::kPerplexity});
  EXPECT_EQ(Find(perplexity, "training")->x, (std::vector<double>{0, 3}));
}

TEST(Plot, TicksAreRoundNumbers) {
  const auto labels = [](const std::vector<Tick>& ticks) {
    std::string out;
    for (const Tick& tick : ticks) out += tick.label + " ";
    return out;
  };
  EXPECT_EQ(labels(Ticks(0.9, 4.3, 8, false)), "1 1.5 2 2.5 3 3.5 4 ");
  EXPECT_EQ(labels(Ticks(0, 2000, 4, false)), "0 500 1k 1.5k 2k ");
  EXPECT_EQ(labels(Ticks(-1, 1, 4, false)), "-1 -0.5 0 0.5 1 ");
  EXPECT_EQ(labels(Ticks(3, 70, 8, true)), "5 10 20 50 ");
  EXPECT_EQ(labels(Ticks(0.5, 2e6, 8, true)), "1 10 100 1k 10k 100k 1M ");
}

// The points of the path that gnuplot drew for its N-th plot, in the picture's own coordinates.
std::vector<std::pair<double, double>> PathOf(const std::string& svg, int number) {
  std::vector<std::pair<double, double>> points;
  const size_t group = svg.find("<title>gnuplot_plot_" + std::to_string(number) + "</title>");
  if (group == std::string::npos) return points;
  const std::string part = svg.substr(group, svg.find("<title>", group + 7) - group);
  // The legend's sample may begin the curve's path: the curve is the longest piece between moves.
  for (size_t at = 0; (at = part.find(" d='", at)) != std::string::npos;) {
    std::istringstream path(part.substr(at + 4, part.find('\'', at + 4) - at - 4));
    std::vector<std::pair<double, double>> found;
    for (std::string point; path >> point;) {
      const size_t start = point.find_first_of("0123456789-"), comma = point.find(',');
      if (start == std::string::npos || comma == std::string::npos) continue;
      if (point[0] == 'M') found.clear();
      found.emplace_back(std::stod(point.substr(start)), std::stod(point.substr(comma + 1)));
    }
    if (found.size() > points.size()) points = found;
    at += 4;
  }
  return points;
}

TEST(Plot, TheSvgHasTheSeriesWhereTheyBelong) {
  const TemporaryFolder folder;
  const std::string path = folder / "a b'\"\\.svg";
  // A curve with a corner, so that a straight stroke cannot stand for it.
  RunCurve run{"it's <b>\"\\n\" & naïve_{x}", {}};
  const std::vector<double> losses = {4, 1, 3, 2, 2.5, 2.25};
  for (size_t i = 0; i < losses.size(); ++i) run.rows.push_back(At(10 * i, losses[i]));
  ASSERT_TRUE(WritePictures(Panel(std::vector{run}, {.floor = 0.5}), path, false));
  const std::string svg = ReadText(path);
  EXPECT_NE(svg.find("Training loss of it's &lt;b>\"\\n\" &amp; naïve_{x}"), std::string::npos);
  EXPECT_NE(svg.find("floor 0.5"), std::string::npos);
  const auto points = PathOf(svg, 1);
  ASSERT_EQ(points.size(), losses.size());
  // Affine in x and y: every point lies where the first two say, to gnuplot's 0.1 of a pixel.
  const double dx = points[1].first - points[0].first;
  const double dy = (points[1].second - points[0].second) / (losses[1] - losses[0]);
  EXPECT_GT(dx, 50);
  EXPECT_LT(dy, -50);  // SVG counts downwards
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(points[i].first, points[0].first + dx * static_cast<double>(i), 0.6);
    EXPECT_NEAR(points[i].second, points[0].second + dy * (losses[i] - losses[0]), 0.3);
  }
}

// The numbers that follow a text in a picture: 900.0 of "<svg width=\"900.0".
std::vector<double> NumbersAfter(const std::string& text, const std::string& before) {
  std::vector<double> numbers;
  for (size_t at = 0; (at = text.find(before, at)) != std::string::npos;) {
    at += before.size();
    numbers.push_back(std::stod(text.substr(at)));
  }
  return numbers;
}

// Five evaluations, of which the last is far from the others: five marks and no more.
TEST(Plot, EachHeldOutLossIsMarkedWhereItWasMeasured) {
  RunCurve run{"r", {}};
  for (int i = 0; i <= 100; ++i) run.rows.push_back(At(i, 4 - 0.03 * i));
  for (const size_t i : {0, 10, 20, 30, 100}) run.rows[i].val_loss = run.rows[i].train_loss + 0.2;
  const Picture picture = MakePicture(std::vector{run}, {.floor = 0.5});
  const TemporaryFolder folder;
  ASSERT_TRUE(WritePictures({&picture, 1}, folder / "a.svg", false));
  const std::string svg = ReadText(folder / "a.svg");
  // gnuplot's mark 7 is its own gpPt6; the legend has one besides.
  EXPECT_EQ(NumbersAfter(svg, "<use xlink:href='#gpPt6' transform='translate(").size(), 5u + 1);

  const std::string chart = ChartSvg(picture);
  const size_t dots = chart.find("class=\"s1 dots\" d=\"");
  ASSERT_NE(dots, std::string::npos);
  const std::string path = chart.substr(dots, chart.find("/>", dots) - dots);
  const std::vector<double> x = NumbersAfter(path, "M");
  ASSERT_EQ(x.size(), 5u);
  // The fourth stands at 30 of 100, between the first and the last.
  EXPECT_NEAR((x[3] - x[0]) / (x[4] - x[0]), 0.3, 1e-3);
}

TEST(Plot, PanelsStandOneBelowTheOther) {
  const TemporaryFolder folder;
  const std::vector runs = {Straight("runs/a", 4, 2, 21)};
  const std::vector panels = {MakePicture(runs, {}),
                              MakePicture(runs, {.metric = PlotMetric::kPerplexity})};
  ASSERT_TRUE(WritePictures(panels, folder / "both.svg", false));
  const std::string svg = ReadText(folder / "both.svg");
  EXPECT_EQ(NumbersAfter(svg, "viewBox=\"0 0 900 "), std::vector<double>{1080});
  const auto height = [&](const std::string& title) {
    const size_t text = svg.find("<text>" + title), shift = svg.rfind("translate(", text);
    return text == std::string::npos ? -1 : std::stod(svg.substr(svg.find(',', shift) + 1));
  };
  const double loss = height("Training and held-out loss of a<");
  EXPECT_GT(loss, 0);
  EXPECT_NEAR(height("Training and held-out perplexity of a<"), loss + 540, 1);
}

TEST(Plot, RunsAreNamedByWhatTellsThemApart) {
  const auto title = [](const std::string& name) {
    return MakePicture(std::vector{RunCurve{name, {At(0, 1)}}}, {}).title;
  };
  EXPECT_EQ(title("runs/stories"), "Training loss of stories");
  EXPECT_EQ(title("runs/stories/"), "Training loss of stories");
  EXPECT_EQ(title("runs/stories/metrics.jsonl"), "Training loss of stories");
  const auto labels = [](const std::string& a, const std::string& b) {
    const Picture picture =
        MakePicture(std::vector{RunCurve{a, {At(0, 1)}}, RunCurve{b, {At(0, 1)}}}, {});
    return picture.series[0].label + ", " + picture.series[1].label;
  };
  EXPECT_EQ(labels("runs/a", "runs/b"), "a training, b training");
  EXPECT_EQ(labels("one/a", "two/a"), "one/a training, two/a training");
}

TEST(Plot, WhatCannotBeWrittenIsSaidAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::vector picture = Panel(std::vector{Straight("a", 4, 2, 21)}, {});
  const auto missing = WritePictures(picture, folder / "no/a.svg", false);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::kIo);
  EXPECT_FALSE(WritePictures(picture, folder / "a.gif", false));
  EXPECT_FALSE(WritePictures(Panel({}, {}), folder / "a.svg", false));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Plot, ALongRunIsThinnedButKeepsItsExtremes) {
  const TemporaryFolder folder;
  RunCurve run{"long", {}};
  for (int i = 0; i < 50000; ++i) run.rows.push_back(At(i, 2));
  run.rows[33333].train_loss = 9;
  ASSERT_TRUE(WritePictures(Panel(std::vector{run}, {}), folder / "a.svg", false));
  EXPECT_LT(std::filesystem::file_size(folder / "a.svg"), 200000);
  // The spike of the raw line stands 7 nats above the rest: near the top of the picture.
  const auto raw = PathOf(ReadText(folder / "a.svg"), 1);
  double highest = HUGE_VAL;
  for (const auto& [x, y] : raw) highest = std::min(highest, y);
  EXPECT_LT(highest, 100);
}

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Plot, AsciiDrawingOfAKnownLine) {
  RunCurve run{"r", {}};
  for (int i = 0; i <= 10; ++i) run.rows.push_back(At(i, 10 - i));
  const auto lines = Lines(
      DrawPicture(MakePicture(std::vector{run}, {}), {.width = 60, .height = 16, .utf8 = false}));
  ASSERT_EQ(lines.size(), 16u);
  EXPECT_EQ(lines[0], "     Training loss of r (nats per token) over iterations");
  // A falling diagonal: every row of the plot has dots, each row's further right.
  size_t before = 0;
  for (size_t i = 2; i < 14; ++i) {
    const size_t first = lines[i].find('.');
    ASSERT_NE(first, std::string::npos) << lines[i];
    EXPECT_GE(first, before);
    before = first;
  }
  EXPECT_EQ(lines[2].find('.'), 5u);
  EXPECT_NE(lines[2].substr(0, 4), lines[13].substr(0, 4));
}

TEST(Plot, DrawingsFitAndHaveTheirLegend) {
  const std::vector runs = {Straight("first", 4, 2, 21), Straight("second", 4, 3, 11)};
  for (const bool utf8 : {true, false}) {
    for (const int width : {40, 60, 100}) {
      const std::string text =
          DrawPicture(MakePicture(runs, {.floor = 1}), {.width = width, .utf8 = utf8});
      for (const std::string& line : Lines(text)) {
        EXPECT_LE(TextWidth(line), static_cast<size_t>(width)) << line;
      }
      for (const char* part : {"A first training 2", "B second training 3", "a first held-out 2.5",
                               "b second held-out 3.5", "floor 1"}) {
        EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
      }
      if (!utf8) {
        for (const char c : text) EXPECT_TRUE((c >= ' ' && c < 127) || c == '\n');
      }
    }
  }
}

TEST(Plot, ColourOnlyWhereItIsAskedFor) {
  const std::vector runs = {Straight("a", 4, 2, 21)};
  const Picture picture = MakePicture(runs, {});
  EXPECT_EQ(DrawPicture(picture, {}).find('\x1b'), std::string::npos);
  EXPECT_NE(DrawPicture(picture, {.colour = true}).find("\x1b[34m"), std::string::npos);
}

TEST(Plot, OnePointAndAFlatLineCanBeDrawn) {
  const std::vector one = {RunCurve{"r", {At(0, 2)}}};
  EXPECT_NE(DrawPicture(MakePicture(one, {}), {.utf8 = false}).find('*'), std::string::npos);
  const TemporaryFolder folder;
  EXPECT_TRUE(WritePictures(Panel(one, {}), folder / "one.svg", false));
  const std::vector flat = {Straight("r", 2, 2, 30)};
  EXPECT_TRUE(
      WritePictures(Panel(flat, {.metric = PlotMetric::kPerplexity}), folder / "flat.png", false));
}

}  // namespace
}  // namespace heed
