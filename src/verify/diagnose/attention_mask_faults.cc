#include <fmt/format.h>

#include <cmath>

#include "verify/diagnose/attention_fault_lists.h"

namespace heed::attention_faults {
namespace {

Variants MaskShaped(MaskShape shape) {
  return {One([shape](Recipe* r) { r->mask.shape = shape; })};
}

// A mask that leaves a row without keys, with everything that can become of such a row.
template <class Set>
Variants WithEmptyRow(Set set) {
  Variants variants;
  const std::pair<EmptyRow, const char*> kinds[] = {
      {EmptyRow::kNan, "the row without keys is NaN"},
      {EmptyRow::kZero, "the row without keys is 0"},
      {EmptyRow::kUniform, "the row without keys is the mean of all values"},
      {EmptyRow::kUnmasked, "the row without keys sees all of them"}};
  for (const auto& [empty, detail] : kinds) {
    variants.push_back(One(
        [set, empty = empty](Recipe* r) {
          set(r);
          r->mask.empty = empty;
        },
        detail));
  }
  return variants;
}

Variants MaskWithEmptyRow(MaskShape shape) {
  return WithEmptyRow([shape](Recipe* r) { r->mask.shape = shape; });
}

// Once padding is seen, its positions count.
Variants WherePaddingStands(const AttentionFacts& f, Variants variants) {
  if (f.rotary == 0 || f.positions_given) return variants;
  const size_t count = variants.size();
  for (const PositionBase base : {PositionBase::kTokens, PositionBase::kTokensPadsOne}) {
    for (size_t i = 0; i < count; ++i) {
      variants.push_back(One(
          [change = variants[i].change, base](Recipe* r) {
            change(r);
            r->rotate.base = base;
          },
          variants[i].detail));
    }
  }
  return variants;
}

Variants MaskMissing(const AttentionFacts&) { return MaskShaped(MaskShape::kNone); }

Variants MaskTransposed(const AttentionFacts& f) {
  return f.P > 0 ? Variants() : MaskShaped(MaskShape::kUpper);
}

Variants MaskShifted(const AttentionFacts&) { return MaskShaped(MaskShape::kOneMore); }

Variants MaskPolarity(const AttentionFacts& f) {
  Variants variants = MaskWithEmptyRow(MaskShape::kStrictlyUpper);
  if (!f.padded) return variants;
  return Joined(
      variants,
      WherePaddingStands(f, WithEmptyRow([](Recipe* r) { r->mask.pads = PadChoice::kReversed; })));
}

Variants MaskNoDiagonal(const AttentionFacts&) { return MaskWithEmptyRow(MaskShape::kNoDiagonal); }

Variants Hidden(HiddenAs how) {
  return {One([how](Recipe* r) { r->mask.hidden = how; })};
}

Variants MaskAfterSoftmax(const AttentionFacts&) { return Hidden(HiddenAs::kZeroedAfter); }

Variants MaskAdded(const AttentionFacts& f) {
  Variants variants = Hidden(HiddenAs::kVisibleRaised);
  if (f.padded) {
    variants = Joined(
        variants, WherePaddingStands(f, {One([](Recipe* r) { r->mask.pads = PadChoice::kRaised; },
                                             "attention_mask is added as it is")}));
  }
  variants.push_back(One([](Recipe* r) { r->mask.hidden = HiddenAs::kHiddenRaised; },
                         "1 stands where a key is to be hidden"));
  variants.push_back(One([](Recipe* r) { r->mask.hidden = HiddenAs::kRaisedUnscaled; },
                         "added before the scores are scaled"));
  return variants;
}

Variants MaskOverflow(const AttentionFacts& f) {
  return f.half ? Hidden(HiddenAs::kOverflowed) : Variants();
}

Variants MaskConventionMixed(const AttentionFacts&) { return Hidden(HiddenAs::kSwamped); }

FittedFault FillFit(HiddenAs how, std::vector<double> grid, bool (*belongs)(double),
                    const char* detail) {
  return {.grid = std::move(grid),
          .change =
              [how](double fill, Recipe* r) {
                r->mask.hidden = how;
                r->mask.fill = fill;
              },
          .belongs = belongs,
          .detail = [detail](double fill) { return fmt::format("{} {:.6g}", detail, fill); }};
}

// -1e-9 where -1e9 was meant.
Variants MaskFilledWithNothing(const AttentionFacts&) {
  return {One([](Recipe* r) { r->mask.hidden = HiddenAs::kFilled; },
              "hidden scores are filled with a number near 0")};
}

// Far below any score a fill is as good as -inf.
Fits MaskFill(const AttentionFacts&) {
  const std::vector<double> grid = {-80, -60, -40, -30, -20, -15, -10, -8, -6,
                                    -5,  -4,  -3,  -2,  -1,  0,   1,   2,  4};
  return {
      FillFit(
          HiddenAs::kFilled, grid, [](double) { return true; }, "hidden scores are filled with"),
      // 0 is no mask, -1 is a triangle of ones added.
      FillFit(
          HiddenAs::kLowered, grid,
          [](double fill) { return std::abs(fill) > 0.05 && std::abs(std::abs(fill) - 1) > 0.02; },
          "hidden scores are changed by")};
}

Fits SoftcapAfterMask(const AttentionFacts&) {
  return {FillFit(
      HiddenAs::kCapped, {0.5, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50},
      [](double) { return true; }, "cap")};
}

FittedFault WindowFit(std::vector<double> sizes) {
  return {.grid = std::move(sizes),
          .whole = true,
          .change = [](double size,
                       Recipe* r) { r->mask.window = static_cast<int64_t>(std::llround(size)); },
          .belongs = [](double) { return true; },
          .detail = [](double size) { return fmt::format("each query sees {:.0f} keys", size); }};
}

Fits WindowOffByOne(const AttentionFacts& f) {
  if (f.window == 0) return {};
  std::vector<double> sizes = {static_cast<double>(f.window + 1)};
  if (f.window > 1) sizes.insert(sizes.begin(), static_cast<double>(f.window - 1));
  return {WindowFit(std::move(sizes))};
}

Fits WindowValue(const AttentionFacts& f) {
  std::vector<double> sizes;
  // A window shows in the first row that it cuts; where trying all is dear, that one is enough.
  constexpr int64_t kManyKeys = 48;
  if (f.S > kManyKeys) {
    const int64_t size = f.P + f.equal_rows;
    if (f.equal_rows < 2 || size >= f.S || std::abs(size - f.window) <= 1) return {};
    return {WindowFit({static_cast<double>(size)})};
  }
  // With a cache, a window up to the chunk is a cache that is not read.
  for (int64_t size = f.P > 0 ? f.T + 1 : 1; size < f.S; ++size) {
    if (f.window > 0 && std::abs(size - f.window) <= 1) continue;
    sizes.push_back(static_cast<double>(size));
  }
  if (sizes.empty()) return {};
  return {WindowFit(std::move(sizes))};
}

Variants WindowSign(const AttentionFacts& f) {
  if (f.window == 0) return {};
  return {One([](Recipe* r) { r->mask.window = 0; })};
}

Variants PaddingNotMasked(const AttentionFacts& f) {
  if (!f.padded) return {};
  return WherePaddingStands(f, {One([](Recipe* r) { r->mask.pads = PadChoice::kSeen; })});
}

Variants MaskFoldOrder(const AttentionFacts& f) {
  if (!f.padded || !f.rows_differ || f.H == 1) return {};
  Variants variants;
  for (const MaskRow row : {MaskRow::kHeadsLead, MaskRow::kBatchLeads}) {
    variants.push_back(One([row](Recipe* r) { r->mask.row = row; }));
    variants.push_back(One(
        [row](Recipe* r) {
          r->mask.row = row;
          r->mask.empty = EmptyRow::kNan;
        },
        "rows without keys are NaN"));
  }
  return variants;
}

Variants FullyMaskedNan(const AttentionFacts& f) {
  if (!f.padded) return {};
  return {One([](Recipe* r) { r->mask.empty = EmptyRow::kNan; })};
}

// Rows of padding are compared where it is stated what they are without a key.
Variants FullyMaskedUniform(const AttentionFacts& f) {
  if (!f.padded || !f.empty_rows_stated) return {};
  return {One([](Recipe* r) { r->mask.empty = EmptyRow::kUniform; }),
          One([](Recipe* r) { r->mask.empty = EmptyRow::kUnmasked; },
              "the fill is added: such a row sees every key")};
}

Variants MaskMinPlusMin(const AttentionFacts& f) {
  if (!f.padded || !f.empty_rows_stated) return {};
  return {One([](Recipe* r) { r->mask.empty = EmptyRow::kHiddenOnce; },
              "keys that one mask alone hides share the row")};
}

Variants CountedByIndex(bool shows) {
  if (!shows) return {};
  return {One([](Recipe* r) { r->rotate.base = PositionBase::kIndex; })};
}

Variants LeftPadPositions(const AttentionFacts& f) {
  return CountedByIndex(f.rotary > 0 && f.padded && !f.packed && f.positions_given);
}

Variants PackingNotReset(const AttentionFacts& f) {
  return CountedByIndex(f.rotary > 0 && f.packed && f.positions_given);
}

Variants PackingNotIsolated(const AttentionFacts& f) {
  if (!f.packed) return {};
  Variants variants = {One([](Recipe* r) { r->mask.documents = false; })};
  if (f.rows_differ) {
    variants.push_back(One([](Recipe* r) { r->mask.row = MaskRow::kFirst; },
                           "every row is cut where the first is"));
  }
  return variants;
}

Variants Sloped(const AttentionFacts& f, AlibiChoice choice) {
  if (f.alibi == AlibiChoice::kNone) return {};
  return {One([choice](Recipe* r) { r->score.alibi = choice; })};
}

Variants AlibiMissing(const AttentionFacts& f) { return Sloped(f, AlibiChoice::kNone); }
Variants AlibiFromZero(const AttentionFacts& f) { return Sloped(f, AlibiChoice::kFromZero); }

Variants AlibiOneSeries(const AttentionFacts& f) {
  return (f.H & (f.H - 1)) == 0 ? Variants() : Sloped(f, AlibiChoice::kOneSeries);
}

Variants AlibiSign(const AttentionFacts& f) { return Sloped(f, AlibiChoice::kBackwards); }

Variants AlibiScaled(const AttentionFacts& f) {
  if (f.alibi == AlibiChoice::kNone) return {};
  return {One([](Recipe* r) { r->score.alibi_scaled = true; })};
}

Variants ScaleZero(const AttentionFacts&) {
  return {One([](Recipe* r) { r->score.scale = 0; })};
}

const AttentionFault kFaults[] = {
    {{"mask_missing", "no causal mask", "hide later keys before softmax",
      "scores = scores.masked_fill(~torch.ones(T, T).tril().bool(), float('-inf'))",
      "if (j > past + i) continue;",
      "the last row is equal, all earlier differ; change token t: rows before t move"},
     MaskMissing},
    {{"mask_after_softmax", "future weights are zeroed behind softmax and rows not renormalised",
      "mask before softmax", "att = scores.masked_fill(hidden, float('-inf')).softmax(dim=-1)",
      "for (int64_t j = 0; j <= past + i; ++j) sum += std::exp(s[j] - max);",
      "the last row is equal; row i is the right row times the mass on keys 0..i"},
     MaskAfterSoftmax},
    {{"mask_polarity", "True means hide where allow is expected: the triangle is reversed",
      "turn the mask over", "allowed = torch.ones(T, T).tril().bool()  # SDPA: True takes part",
      "visible = j <= past + i;", "row 0 sees all later keys, the last row none"},
     MaskPolarity},
    {{"mask_transposed", "lower triangle where the upper is meant, by the order of the indices",
      "index the mask [query, key]", "mask = torch.ones(T, T).tril()", "visible = j <= past + i;",
      "the last row is v_last alone, row 0 a full softmax"},
     MaskTransposed},
    {{"mask_diagonal_excluded", "a token cannot see itself",
      "begin the hidden triangle one above the diagonal",
      "hidden = torch.ones(T, T).triu(diagonal=1).bool()", "visible = j <= past + i;",
      "row 0 is NaN or the mean of v; row i uses keys 0..i-1"},
     MaskNoDiagonal},
    {{"mask_shifted_by_one", "one future token is visible",
      "begin the hidden triangle one above the diagonal",
      "hidden = torch.ones(T, T).triu(diagonal=1).bool()", "visible = j <= past + i;",
      "change token t: row t-1 moves, row t-2 does not"},
     MaskShifted},
    {{"mask_01_added", "a triangle of 0 and 1 is added to the scores in place of 0 and -inf",
      "fill hidden scores with -inf",
      "scores = scores.masked_fill(mask == 0, float('-inf'))  # not scores + mask",
      "score = visible ? score : -INFINITY;",
      "the last row is equal; every hidden weight is 1/e of what an allowed one would get"},
     MaskAdded},
    {{"padding_not_masked", "keys of padding take part", "hide keys where attention_mask is 0",
      "scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, float('-inf'))",
      "if (attention_mask[b * S + j] == 0) continue;",
      "a row's result changes with the amount of padding; behind the tokens, padding hides"},
     PaddingNotMasked},
    {{"mask_fold_order", "a batch row is given another one's padding",
      "repeat the mask in the order in which heads are folded",
      "mask = attention_mask[:, None, None, :]  # broadcast over heads, no repeat",
      "const int64_t* mask = attention_mask + b * S;",
      "needs two rows of different padding; with one padding for all it is right"},
     MaskFoldOrder},
    {{"fully_masked_row_nan", "a row of padding that sees no key is 0/0", "answer 0 for such a row",
      "att = att.nan_to_num(0)  # or let rows of padding see themselves",
      "if (sum == 0) continue;  // z stays 0",
      "only rows without a key are NaN; in the next layer they spread"},
     FullyMaskedNan},
    {{"fully_masked_row_uniform",
      "a finite fill makes a row that sees no key the mean of all values, later ones included",
      "answer 0 for such a row, or leave it out of whatever is read",
      "z = z.masked_fill(~mask.any(-1, keepdim=True), 0)", "if (sum == 0) continue;  // z stays 0",
      "hide every key of a row, then none: with the same scores both give the same row; in a dump, "
      "state rows_without_keys zero"},
     FullyMaskedUniform},
    {{"mask_min_plus_min", "two masks of the type's least number are added, and overflow to -inf",
      "join what is visible first, and hide once",
      "att = att.masked_fill(~(causal & tokens[:, None, None, :]), torch.finfo(att.dtype).min)",
      "const bool visible = j <= past + i && token[j];",
      "either mask alone gives finite gradients; both together NaN, on padded batches alone; in a "
      "dump, state rows_without_keys zero: a row of padding is the mean over keys hidden once"},
     MaskMinPlusMin},
    {{"left_pad_positions", "positions are counted from the padding",
      "count from the first token of each row",
      "position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)",
      "position = t - first_token[b];",
      "the longest row is equal; with RoPE and no cache the output is, and q_rot is not"},
     LeftPadPositions},
    {{"packing_not_isolated", "tokens of another document are seen", "hide keys of other documents",
      "visible &= document_ids[:, None, :, None] == document_ids[:, None, None, :]",
      "if (document[i] != document[j]) continue;",
      "change document 1: rows of document 2 must not move"},
     PackingNotIsolated},
    {{"packing_positions_not_reset", "positions run on from one document to the next",
      "begin each document at position 0",
      "position_ids = torch.cat([torch.arange(n) for n in lengths])",
      "position = t - document_start[t];",
      "with RoPE the output is equal, and q_rot is not; learned positions differ"},
     PackingNotReset},
    {{"alibi_slope_exponent", "slopes begin at 2^0: the exponent is off by one",
      "begin at 2^(-8/H)", "slopes = 2.0 ** (-8 * torch.arange(1, H + 1) / H)",
      "slope = std::exp2(-8.0 * (h + 1) / H);", "head h has the slope of head h-1"},
     AlibiFromZero},
    {{"alibi_non_power_of_two", "one geometric series, though the heads are no power of two",
      "take the series of the power of two below, then every other slope of the one above",
      "n = 2 ** int(math.log2(H)); slopes = series(n) + series(2 * n)[0::2][:H - n]",
      "slope = h < n ? std::exp2(-8.0 * (h + 1) / n) : std::exp2(-4.0 * (2 * (h - n) + 1) / n);",
      "right for 8 heads, wrong for 12"},
     AlibiOneSeries},
    {{"alibi_missing", "scores have no slope", "add the slope times the distance",
      "scores = scores - slopes[:, None, None] * (i[:, None] - j)",
      "score -= slope[h] * (past + i - j);",
      "permute the tokens before the last: without slopes its row does not move"},
     AlibiMissing},
    {{"alibi_sign", "distant keys are raised, not lowered", "subtract the slope times the distance",
      "scores = scores - slopes[:, None, None] * (i[:, None] - j)",
      "score -= slope[h] * (past + i - j);", "weights grow with the distance"},
     AlibiSign},
    {{"alibi_scaled", "the slope is added before the products are scaled",
      "scale the products, then add the slope",
      "scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim) + bias",
      "score = dot(q, k, D) / std::sqrt(double(D)) - slope[h] * (past + i - j);",
      "slopes fitted to the scores are too small by sqrt(head_dim)"},
     AlibiScaled},
    {{"scale_zero", "the products are multiplied by 0: a default was taken literally",
      "derive the scale when none is given", "scale = scale or 1 / math.sqrt(head_dim)",
      "if (scale == 0) scale = 1 / std::sqrt(double(D));", "the output is the prefix mean of v"},
     ScaleZero},
    {{"mask_convention_mixed", "an additive mask meets code that computes (1 - mask) * -1e9",
      "use one convention for the mask, end to end",
      "scores = scores + mask  # mask is 0 or -inf already", "score += mask[i][j];",
      "row i is the mean of v_0..v_i, independent of q and k"},
     MaskConventionMixed},
    {{"mask_fp16_overflow", "-1e9 or the like becomes -inf in float16, and 0 times it NaN",
      "fill hidden scores in place of multiplying the mask",
      "scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)",
      "score = visible ? score : -INFINITY;", "the same call in float32 is right"},
     MaskOverflow},
    {{"mask_fill_too_weak", "hidden scores are finite and not low enough", "fill with -inf",
      "scores = scores.masked_fill(hidden, float('-inf'))", "score = -INFINITY;",
      "scale q by 1, 10, 100: the leak appears or grows"},
     MaskFilledWithNothing,
     MaskFill},
    {{"window_off_by_one", "the window holds one key too many or too few",
      "count the token itself among the window's keys", "visible = (j <= i) & (j > i - window)",
      "visible = j <= i && j > i - window;", "rows 0..W-1 are equal, later differ"},
     nullptr,
     WindowOffByOne},
    {{"window_sign", "the window is unlimited", "pass a positive window",
      "visible = (j <= i) & (j > i - window)", "visible = j <= i && j > i - window;",
      "equal up to row W-1, full causal attention behind it"},
     WindowSign},
    {{"window_value", "a window of another size than stated", "agree on the number of visible keys",
      "visible = (j <= i) & (j > i - window)", "visible = j <= i && j > i - window;",
      "rows up to the smaller window are equal"},
     nullptr,
     WindowValue},
    {{"softcap_after_mask", "the tanh cap is applied to masked scores: -inf becomes -cap",
      "cap first, then mask",
      "scores = (cap * torch.tanh(scores / cap)).masked_fill(hidden, float('-inf'))",
      "score = visible ? cap * std::tanh(score / cap) : -INFINITY;",
      "hidden weights grow as the cap shrinks"},
     nullptr,
     SoftcapAfterMask},
};

}  // namespace

std::span<const AttentionFault> OfMask() { return kFaults; }

}  // namespace heed::attention_faults
