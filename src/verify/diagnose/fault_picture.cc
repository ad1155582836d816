#include "verify/diagnose/fault_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "verify/diagnose/attention_search.h"
#include "verify/diagnose/fault_examples.h"
#include "verify/diagnose/live_probe.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr int64_t kT = 6, kHead = 1;
constexpr int kCell = 12, kGap = 24, kTop = 18, kShades = 8;

// ------------------------------------------------------------------ examples

struct Example {
  AttentionDump dump;

  // `context`: of what B, T and the case's settings say.
  explicit Example(const std::function<void(Probe*)>& change, int64_t past = 0,
                   AttentionContext context = {}) {
    AttentionSettings settings{
        .n_head = 4, .n_kv_head = 2, .head_dim = 8, .position = Position::kRope, .rotary_dim = 8};
    Probe probe{.shape = {settings, 20, true, false}, .B = 2, .T = past + kT};
    change(&probe);
    dump.attention = MakeCase(probe);
    dump.stated = {"position", "rope_pairing", "rope_first_position", "qkv_layout"};
    dump.linear_stated = true;
    dump.context = std::move(context);
    if (past > 0) PutInCache(past);
  }

  // The first `past` positions, as the right formula caches them.
  void PutInCache(int64_t past) {
    AttentionCase& a = dump.attention;
    AttentionSearch search(dump);
    const AttentionRecipe right = search.conventions()[0].right;
    const int64_t T = a.T, D = a.settings.head_dim, C = a.qkv.in;
    const auto rows = [&](const Numbers& from, int64_t width, int64_t first, int64_t count) {
      Numbers out;
      for (size_t at = 0; at < from.size(); at += static_cast<size_t>(T * width)) {
        const auto begin = from.begin() + static_cast<std::ptrdiff_t>(at) + first * width;
        out.insert(out.end(), begin, begin + count * width);
      }
      return out;
    };
    a.past_k = rows(*search.replay().Tensor(right, Stage::kKRot), D, 0, past);
    a.past_v = rows(*search.replay().Tensor(right, Stage::kV), D, 0, past);
    a.x = rows(a.x, C, past, T - past);
    a.P = past;
    a.T = T - past;
  }
};

// From plain to special: a fault is shown on the first on which it shows.
std::vector<Example> Examples() {
  const auto equal_heads = [](Probe* p) { p->shape.settings.n_kv_head = 4; };
  std::vector<Example> examples;
  examples.emplace_back([](Probe*) {});
  examples.emplace_back(equal_heads);
  examples.emplace_back([](Probe* p) { p->shape.fused = true; });
  examples.emplace_back([](Probe* p) {
    p->shape.fused = true;
    p->shape.settings.n_head = p->shape.settings.n_kv_head = 4;
  });
  examples.emplace_back([](Probe* p) { p->shape.settings.rotary_dim = 4; });
  examples.emplace_back([](Probe* p) { p->shape.settings.window = 3; });
  examples.emplace_back([](Probe* p) { p->shape.n_embd = 32; });
  examples.emplace_back(
      [](Probe* p) { p->shape.settings.rope_pairing = RopePairing::kInterleaved; });
  examples.emplace_back([](Probe* p) { p->gain = 16; });
  examples.emplace_back([](Probe*) {}, 3);
  examples.emplace_back([](Probe* p) { p->shape.settings.rope_first_position = 4; }, 3);
  examples.emplace_back([](Probe*) {}, 7);
  const auto no_rope = [](Probe* p) {
    p->shape.settings.position = Position::kNone;
    p->shape.settings.n_head = 6;
  };
  AttentionContext context;
  context.attention_mask = {0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  examples.emplace_back([](Probe*) {}, 0, context);
  context.attention_mask = {0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  context.position_ids = {1, 2, 3, 4, 5, 6, 2, 3, 4, 5, 6, 7};
  examples.emplace_back([](Probe*) {}, 3, context);
  context = {};
  context.document_ids = {0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1};
  examples.emplace_back([](Probe*) {}, 0, context);
  context = {};
  context.alibi = true;
  examples.emplace_back(no_rope, 0, context);
  context = {};
  context.qk_norm = NormPlace::kBeforeRotation;
  context.qk_layernorm = false;
  for (HeadGain* gain : {&context.q_norm, &context.k_norm}) {
    for (int i = 0; i < (gain == &context.q_norm ? 32 : 16); ++i) {
      gain->values.push_back(0.4 + 0.3 * (i % 8));
    }
  }
  examples.emplace_back([](Probe*) {}, 0, context);
  return examples;
}

// ------------------------------------------------------------------ drawing

struct Panel {
  std::string title;
  int64_t columns = 0;
  Numbers values;  // [rows, columns], 0 to 1; NaN is drawn apart
  int64_t rows = kT;
};

std::string Draw(const std::vector<Panel>& panels) {
  std::string body;
  int64_t x = 4, rows = 0;
  for (const Panel& panel : panels) {
    rows = std::max(rows, panel.rows);
    body += fmt::format("<text x=\"{}\" y=\"12\">{}</text>\n", x, panel.title);
    std::map<int, std::string> shades;  // -1: not a number
    for (size_t i = 0; i < panel.values.size(); ++i) {
      const double value = panel.values[i];
      const int shade = std::isfinite(value) ? static_cast<int>(std::lround(value * kShades)) : -1;
      if (shade == 0) continue;
      const auto at = static_cast<int64_t>(i);
      shades[shade] += fmt::format("M{} {}h{}v{}h-{}z", x + at % panel.columns * kCell,
                                   kTop + at / panel.columns * kCell, kCell, kCell, kCell);
    }
    for (const auto& [shade, path] : shades) {
      const std::string fill = shade < 0 ? "#c22" : "#148";
      const double opacity = shade < 0 ? 1 : static_cast<double>(shade) / kShades;
      body +=
          fmt::format("<path fill=\"{}\" fill-opacity=\"{:g}\" d=\"{}\"/>\n", fill, opacity, path);
    }
    const int64_t width = panel.columns * kCell;
    body += fmt::format("<path fill=\"none\" stroke=\"#888\" d=\"M{} {}h{}v{}h-{}z\"/>\n", x, kTop,
                        width, panel.rows * kCell, width);
    x += std::max<int64_t>(width, 7 * static_cast<int64_t>(panel.title.size())) + kGap;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
      x, kTop + rows * kCell + 6, body);
}

// Batch row 0, one head.
Panel Weights(const std::string& title, const AttentionCase& a, const Numbers& pattern) {
  const int64_t S = static_cast<int64_t>(pattern.size()) / (a.B * a.settings.n_head * a.T);
  const auto first = pattern.begin() + kHead * a.T * S;
  return {title, S, Numbers(first, first + a.T * S)};
}

// Sizes of numbers, in units of `most`.
Panel Sizes(const std::string& title, const std::vector<int64_t>& shape, const Numbers& numbers,
            double most) {
  constexpr int64_t kMostRows = 8, kMostColumns = 12;
  const int64_t columns = shape.back();
  const int64_t rows = static_cast<int64_t>(numbers.size()) / columns;
  Panel panel{title, std::min(columns, kMostColumns), {}, std::min(rows, kMostRows)};
  for (int64_t r = 0; r < panel.rows; ++r) {
    for (int64_t c = 0; c < panel.columns; ++c) {
      panel.values.push_back(std::abs(numbers[r * columns + c]) / std::max(most, 1e-30));
    }
  }
  return panel;
}

double Largest(const Numbers& a, const Numbers& b) {
  double most = 0;
  for (const Numbers* numbers : {&a, &b}) {
    for (const double value : *numbers) {
      if (std::isfinite(value)) most = std::max(most, std::abs(value));
    }
  }
  return most;
}

// Each tensor as it is right and with the fault where one sees it, and the error.
std::string PictureOf(const FaultView& view) {
  std::vector<Panel> panels;
  for (size_t i = 0; i < view.names.size(); ++i) {
    const Numbers &right = view.right[i], &wrong = view.wrong[i];
    const double most = Largest(right, wrong);
    if (!(Residual(wrong, right) < 0.02)) {
      panels.push_back(Sizes(view.names[i], view.shapes[i], right, most));
      panels.push_back(Sizes("with the fault", view.shapes[i], wrong, most));
    }
    Numbers error(right.size());
    for (size_t j = 0; j < right.size(); ++j) error[j] = wrong[j] - right[j];
    panels.push_back(Sizes("error of " + view.names[i], view.shapes[i], error, Largest(error, {})));
  }
  return Draw(panels);
}

std::optional<std::string> PictureOf(std::string_view id, const AttentionDump& dump) {
  AttentionSearch search(dump);
  AttentionReplay& replay = search.replay();
  const AttentionCase& a = dump.attention;
  const AttentionRecipe right = search.conventions()[0].right;
  const Numbers y = *replay.Tensor(right, Stage::kY);
  for (const AttentionRecipe& recipe : search.RecipesOf({std::string(id)})) {
    const Numbers theirs = *replay.Tensor(recipe, Stage::kY);
    if (Residual(theirs, y) < 0.02) continue;
    std::vector<Panel> panels;
    // Attention along the batch has weights of another shape.
    if (!recipe.project.batch_as_time) {
      const Panel ours = Weights("right weights", a, *replay.Tensor(right, Stage::kPattern));
      const Panel other = Weights("with the fault", a, *replay.Tensor(recipe, Stage::kPattern));
      if (Residual(other.values, ours.values) > 0.02) panels = {ours, other};
    }
    const int64_t C = a.proj.out, shown = std::min<int64_t>(C, 12);
    Panel error{"error of y", shown, {}};
    double most = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      if (std::isfinite(theirs[i])) most = std::max(most, std::abs(theirs[i] - y[i]));
    }
    for (int64_t t = 0; t < a.T; ++t) {
      for (int64_t c = 0; c < shown; ++c) {
        error.values.push_back(std::abs(theirs[t * C + c] - y[t * C + c]) / std::max(most, 1e-30));
      }
    }
    panels.push_back(std::move(error));
    return Draw(panels);
  }
  return std::nullopt;
}

}  // namespace

std::string FaultPicture(std::string_view id) {
  static const std::vector<Example> kExamples = Examples();
  for (const Example& example : kExamples) {
    if (std::optional<std::string> picture = PictureOf(id, example.dump)) return *picture;
  }
  const std::optional<FaultView> view = ViewFault(std::string(id));
  return view ? PictureOf(*view) : "";
}

}  // namespace heed
