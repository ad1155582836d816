#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/diagnose/attention_fault_lists.h"

namespace heed::attention_faults {
namespace {

double Root(int64_t n) { return std::sqrt(static_cast<double>(n)); }

Variants Scaled(double scale, std::string detail = "") {
  return {One([scale](Recipe* r) { r->score.scale = scale; }, std::move(detail))};
}

Variants ScaleMissing(const AttentionFacts&) { return Scaled(1); }

Variants ScaleModel(const AttentionFacts& f) {
  Variants variants = Scaled(1 / Root(f.C), fmt::format("sqrt({})", f.C));
  if (f.H * f.D != f.C) {
    variants.push_back(Scaled(1 / Root(f.H * f.D), fmt::format("sqrt({})", f.H * f.D))[0]);
  }
  return variants;
}

Variants ScaleHeads(const AttentionFacts& f) { return Scaled(1 / Root(f.H)); }
Variants ScaleLinear(const AttentionFacts& f) { return Scaled(1 / static_cast<double>(f.D)); }

Variants ScaleWidthPerHead(const AttentionFacts& f) {
  if (f.C == f.H * f.D) return {};
  return Scaled(std::sqrt(static_cast<double>(f.H) / static_cast<double>(f.C)),
                fmt::format("sqrt({} / {})", f.C, f.H));
}

Fits ScaleValue(const AttentionFacts& f) {
  std::vector<double> grid;
  for (double size = 1e-3; size < 40; size *= 1.5) grid.push_back(size);
  const double per_head = std::sqrt(static_cast<double>(f.H) / static_cast<double>(f.C));
  const std::vector<double> named = {1 / Root(f.D), 1,         1 / Root(f.C), 1 / Root(f.H * f.D),
                                     1 / Root(f.H), 1.0 / f.D, per_head};
  return {{.grid = std::move(grid),
           .change = [](double scale, Recipe* r) { r->score.scale = scale; },
           .belongs =
               [named](double scale) {
                 return std::ranges::none_of(
                     named, [scale](double n) { return std::abs(scale / n - 1) < 0.01; });
               },
           .detail = [](double scale) { return fmt::format("products times {:.6g}", scale); }}};
}

Variants Normalised(SoftmaxKind kind) {
  return {One([kind](Recipe* r) { r->softmax.kind = kind; })};
}

Variants SoftmaxQueries(const AttentionFacts&) { return Normalised(SoftmaxKind::kQueries); }

Variants SoftmaxMixed(const AttentionFacts&) {
  return {One([](Recipe* r) { r->softmax.kind = SoftmaxKind::kMaximumOfKeys; },
              "the maximum along the keys, the sum along the queries"),
          One([](Recipe* r) { r->softmax.kind = SoftmaxKind::kMaximumOfQueries; },
              "the maximum along the queries, the sum along the keys")};
}

Variants SoftmaxHeads(const AttentionFacts& f) {
  Variants variants;
  const std::pair<EmptyRow, const char*> kinds[] = {
      {EmptyRow::kNan, "hidden entries become NaN"},
      {EmptyRow::kZero, "hidden entries stay 0"},
      {EmptyRow::kUniform, "hidden entries, all equally low, share 1"}};
  for (const SoftmaxKind kind : {SoftmaxKind::kHeads, SoftmaxKind::kBatch}) {
    const bool heads = kind == SoftmaxKind::kHeads;
    if ((heads ? f.H : f.B) == 1) continue;
    for (const auto& [empty, detail] : kinds) {
      variants.push_back(One(
          [kind, empty = empty](Recipe* r) {
            r->softmax.kind = kind;
            r->mask.empty = empty;
          },
          fmt::format("over {}; {}", heads ? "the heads" : "the batch", detail)));
    }
  }
  return variants;
}

Variants SoftmaxNoMax(const AttentionFacts& f) {
  return f.largest_score > 80 ? Normalised(SoftmaxKind::kOverflow32) : Variants();
}

Variants SoftmaxTiles(const AttentionFacts& f) {
  Variants variants;
  for (const SoftmaxKind kind : {SoftmaxKind::kTileMaximum, SoftmaxKind::kTileMaximumUncarried}) {
    for (const int64_t tile : {2, 3, 4, 5, 6, 8, 16, 32, 64, 128}) {
      if (tile >= f.S) break;
      variants.push_back(One(
          [kind, tile](Recipe* r) {
            r->softmax.kind = kind;
            r->softmax.tile = tile;
          },
          fmt::format("tiles of {} keys", tile)));
    }
  }
  return variants;
}

Variants SoftmaxPlusOne(const AttentionFacts&) {
  return Normalised(SoftmaxKind::kPlusOneUnshifted);
}

Variants AttentionTransposed(const AttentionFacts& f) {
  if (f.P > 0) return {};
  return {One([](Recipe* r) { r->combine.transposed = true; })};
}

const AttentionFault kFaults[] = {
    {{"scale_missing", "the products are not divided by sqrt(head_dim)", "divide by sqrt(head_dim)",
      "scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)",
      "score = dot(q, k, D) / std::sqrt(double(D));",
      "row 0 is equal; log-ratios of weights are sqrt(D) times too large"},
     ScaleMissing},
    {{"scale_d_model", "divided by the square root of the model's width",
      "divide by sqrt(head_dim)", "scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)",
      "score = dot(q, k, D) / std::sqrt(double(D));",
      "one temperature fits all weights: 1/sqrt(H)"},
     ScaleModel},
    {{"scale_num_heads", "divided by the square root of the number of heads",
      "divide by sqrt(head_dim)", "scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)",
      "score = dot(q, k, D) / std::sqrt(double(D));",
      "one temperature fits all weights: sqrt(D/H)"},
     ScaleHeads},
    {{"scale_linear", "divided by head_dim, not by its square root", "divide by sqrt(head_dim)",
      "scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)",
      "score = dot(q, k, D) / std::sqrt(double(D));",
      "one temperature fits all weights: 1/sqrt(D)"},
     ScaleLinear},
    {{"scale_head_dim_vs_width", "width / heads stands for head_dim, which is set apart from it",
      "read head_dim itself", "scale = 1 / math.sqrt(q.size(-1))",
      "scale = 1 / std::sqrt(double(D));", "differs only where heads x head_dim is not the width"},
     ScaleWidthPerHead},
    {{"scale_value", "the products are multiplied by another constant",
      "multiply by 1 / sqrt(head_dim)", "scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)",
      "score = dot(q, k, D) / std::sqrt(double(D));",
      "row 0 is equal; one temperature fits all weights"},
     nullptr,
     ScaleValue},
    {{"softmax_axis_query", "softmax runs over the queries: columns sum to 1",
      "normalise along the keys", "att = scores.softmax(dim=-1)",
      "for (int64_t j = 0; j < S; ++j) sum += std::exp(s[i * S + j] - max[i]);",
      "column sums of the weights are 1"},
     SoftmaxQueries},
    {{"softmax_axes_mixed", "maximum and sum of the softmax run along different axes",
      "take both along the keys", "att = scores.softmax(dim=-1)",
      "for (int64_t j = 0; j < S; ++j) sum += std::exp(s[i * S + j] - max[i]);",
      "rows of the weights, or columns, sum to 1 no longer"},
     SoftmaxMixed},
    {{"softmax_axis_head", "softmax runs over the heads or the batch", "normalise along the keys",
      "att = scores.softmax(dim=-1)  # not dim=1",
      "for (int64_t j = 0; j < S; ++j) sum += std::exp(s[i * S + j] - max[i]);",
      "change head 1's q: head 0 moves"},
     SoftmaxHeads},
    {{"attention_transposed", "the weights are used transposed", "multiply weights [T, S] by v",
      "z = att @ v", "z[i] += att[i * S + j] * v[j];",
      "the output is the transposed weights times v"},
     AttentionTransposed},
    {{"softmax_no_max", "exp without subtracting the row's maximum overflows",
      "subtract the row's maximum first", "att = scores.softmax(dim=-1)",
      "weight = std::exp(s[j] - max);", "scores times 100 give NaN"},
     SoftmaxNoMax},
    {{"softmax_tile_local_max", "a streaming softmax weighs by the tile's own maximum",
      "weigh by the running maximum, and scale earlier sums when it grows",
      "m_new = torch.maximum(m, s.amax(-1)); p = torch.exp(s - m_new[..., None])",
      "m_new = std::max(m, tile_max); p = std::exp(s - m_new); sum = sum * std::exp(m - m_new) + "
      "p;",
      "rows within the first tile are equal; try three tiles and look at every row"},
     SoftmaxTiles},
    {{"softmax_plus_one_shift", "1 is added to the sum of exponentials after the maximum was taken",
      "add exp(-max), the shifted 1", "den = e.sum(-1, keepdim=True) + torch.exp(-m)",
      "sum += std::exp(-max);", "add a constant to a row of scores: the output must not move"},
     SoftmaxPlusOne},
    {{"dropout_live_in_eval", "dropout acts in evaluation", "pass p only in training",
      "F.scaled_dot_product_attention(q, k, v, dropout_p=p if self.training else 0.0)",
      "if (training) dropout(pattern, p);", "two calls differ; the mean of many is right"}},
    {{"dropout_unused", "dropout is built and never called", "call it on the weights in training",
      "att = self.attn_dropout(att)", "if (training) dropout(pattern, p);",
      "training and evaluation give the same numbers"}},
    {{"dropout_off_for_good", "one evaluation turns dropout off for the rest of training",
      "leave p alone, and switch the mode back", "model.eval(); evaluate(model); model.train()",
      "if (training) dropout(pattern, p);",
      "two passes in training behind an evaluation are identical, before it they are not"}},
    {{"dropout_scaling_missing", "what survives dropout is not divided by 1 - p",
      "divide what is kept by 1 - p", "F.dropout(att, p, self.training)",
      "weight = kept ? weight / (1 - p) : 0;",
      "the mean of many training results is 1 - p, or (1 - p) / p, times that of evaluation"}},
    {{"mask_dropped_on_a_path", "the mask is lost on one path, as in training alone",
      "hide later keys on every path",
      "F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)  # in both modes",
      "if (j > past + i) continue;",
      "training without dropout and evaluation must agree; later tokens move earlier rows"}},
    {{"gradient_rank_assumption", "a backward pass written for two dimensions gets three",
      "fold all leading dimensions into rows before the products of backward",
      "dw = dy.flatten(0, -2).T @ x.flatten(0, -2)", "const int64_t rows = B * T;",
      "save dy and the gradients as grad.NAME: those of a batch of one are right; finite is not "
      "yet "
      "right"}},
};

}  // namespace

std::span<const AttentionFault> OfScores() { return kFaults; }

}  // namespace heed::attention_faults
