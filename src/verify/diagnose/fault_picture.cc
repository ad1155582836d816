#include "verify/diagnose/fault_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/random.h"
#include "inspect/attention_trace.h"
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
    Probe probe;
    probe.shape.settings = settings;
    probe.shape.n_embd = 20;
    probe.shape.bias = true;
    probe.T = past + kT;
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
  context.position_ids = {0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 3, 4};
  examples.emplace_back([](Probe*) {}, 0, context);
  context = {};
  context.attention_mask = {0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  context.rows_without_keys = EmptyRow::kZero;
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
  examples.emplace_back([](Probe*) {}).dump.coarsest = DType::kF16;
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

// The sizes of the errors of batch row 0, one row for each position.
Panel Errors(const std::string& title, const AttentionCase& a, const Numbers& right,
             const Numbers& wrong) {
  const auto C = static_cast<int64_t>(right.size()) / (a.B * a.T);
  Numbers error(a.T * C);
  for (size_t i = 0; i < error.size(); ++i) error[i] = wrong[i] - right[i];
  return Sizes(title, {a.T, C}, error, Largest(error, {}));
}

// Weights where they differ, and errors.
std::string PictureOf(const AttentionCase& a, const Numbers& right_weights, const Numbers& weights,
                      Panel errors) {
  std::vector<Panel> panels;
  // Attention along the batch has weights of another shape.
  if (weights.size() == right_weights.size()) {
    Panel ours = Weights("right weights", a, right_weights);
    Panel other = Weights("with the fault", a, weights);
    // Dropout makes weights above 1 of those that it keeps.
    const double most = std::max(1.0, Largest(ours.values, other.values));
    for (Panel* panel : {&ours, &other}) {
      for (double& value : panel->values) value /= most;
    }
    if (!(Residual(other.values, ours.values) <= 0.02)) panels = {ours, other};
  }
  panels.push_back(std::move(errors));
  return Draw(panels);
}

std::optional<std::string> PictureOf(std::string_view id, const AttentionDump& dump) {
  AttentionSearch search(dump);
  AttentionReplay& replay = search.replay();
  const AttentionCase& a = dump.attention;
  const AttentionRecipe right = search.conventions()[0].right;
  for (const AttentionRecipe& recipe : search.RecipesOf({std::string(id)})) {
    // What shows in y, or under RoPE before it alone.
    for (const auto& [stage, title] :
         {std::pair(Stage::kY, "error of y"), {Stage::kQRot, "error of q_rot"}}) {
      const Numbers ours = *replay.Tensor(right, stage), theirs = *replay.Tensor(recipe, stage);
      if (Residual(theirs, ours) < 0.02) continue;
      // q_rot is [B, H, T, D]: of one head.
      const int64_t D = a.settings.head_dim, first = stage == Stage::kQRot ? kHead * a.T * D : 0;
      const int64_t end = stage == Stage::kQRot ? first + a.B * a.T * D : std::ssize(ours);
      return PictureOf(a, *replay.Tensor(right, Stage::kPattern),
                       *replay.Tensor(recipe, Stage::kPattern),
                       Errors(title, a, {ours.begin() + first, ours.begin() + end},
                              {theirs.begin() + first, theirs.begin() + end}));
    }
  }
  return std::nullopt;
}

// ------------------------------------------------------------------ what is no recipe

// What dropout of 0.3 makes of the weights; 1: with its scaling.
Numbers Dropped(Numbers weights, bool scaled) {
  constexpr double kDropped = 0.3;
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool kept = RandomUniform({17, 4, 0}, i) >= kDropped;
    weights[i] *= !kept ? 0 : scaled ? 1 / (1 - kDropped) : 1;
  }
  return weights;
}

// With and without dropout, or without its scaling.
std::optional<std::string> DropoutPicture(std::string_view id, const AttentionDump& dump) {
  AttentionSearch search(dump);
  const AttentionCase& a = dump.attention;
  const AttentionRecipe right = search.conventions()[0].right;
  const Numbers plain = *search.replay().Tensor(right, Stage::kPattern);
  const Numbers dropped = Dropped(plain, true);
  const std::pair<std::string_view, std::pair<Numbers, Numbers>> kinds[] = {
      {"dropout_live_in_eval", {plain, dropped}},
      {"dropout_unused", {dropped, plain}},
      {"dropout_off_for_good", {dropped, plain}},
      {"dropout_scaling_missing", {dropped, Dropped(plain, false)}}};
  for (const auto& [fault, weights] : kinds) {
    if (fault != id) continue;
    const auto y_of = [&](const Numbers& pattern) {
      AttentionReplay replay(a, dump.context);
      replay.AssumePattern(right, pattern);
      return *replay.Tensor(right, Stage::kY);
    };
    return PictureOf(a, weights.first, weights.second,
                     Errors("error of y", a, y_of(weights.first), y_of(weights.second)));
  }
  return std::nullopt;
}

// The gradient of o_proj's weight, summed over as many rows as the batch has sequences.
std::string GradientPicture(AttentionCase a) {
  for (int64_t i = 0; i < a.B * a.T * a.proj.out; ++i) a.dy.push_back(RandomNormal({17, 5, 0}, i));
  const std::string name = "grad." + a.proj.parts[0].weight;
  FaultView view{.names = {name}};
  for (const int64_t rows : {int64_t{0}, a.B}) {
    for (const TracedTensor& tensor : TraceAttention(a, rows)) {
      if (tensor.name != name) continue;
      view.shapes = {tensor.shape};
      (rows == 0 ? view.right : view.wrong) = {tensor.values};
    }
  }
  return PictureOf(view);
}

// A fault of one path, or of a second call, makes what this one makes of the whole program.
std::string_view SameWrongNumbers(std::string_view id) {
  if (id == "mask_dropped_on_a_path") return "mask_missing";
  if (id == "rope_table_cache_key") return "position_restart";
  return id;
}

}  // namespace

std::string FaultPicture(std::string_view id) {
  static const std::vector<Example> kExamples = Examples();
  for (const Example& example : kExamples) {
    const auto picture = PictureOf(SameWrongNumbers(id), example.dump);
    if (picture) return *picture;
  }
  if (const auto picture = DropoutPicture(id, kExamples[0].dump)) return *picture;
  if (id == "gradient_rank_assumption") return GradientPicture(kExamples[0].dump.attention);
  const std::optional<FaultView> view = ViewFault(std::string(id));
  return view ? PictureOf(*view) : "";
}

}  // namespace heed
