#include "verify/diagnose/attention_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace heed {
namespace {

using Recipe = AttentionRecipe;
using Variants = std::vector<Variant>;
using Fits = std::vector<FittedFault>;

double Root(int64_t n) { return std::sqrt(static_cast<double>(n)); }

// ------------------------------------------------------------------ mask

template <class Set>
Variant One(Set set, std::string detail = "") {
  return {Change(std::move(set)), std::move(detail)};
}

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

Variants Joined(Variants a, const Variants& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
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
Variants AlignTopLeft(const AttentionFacts& f) {
  return f.P == 0 ? Variants() : MaskShaped(MaskShape::kTopLeft);
}

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

// ------------------------------------------------------------------ padding and packing

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

// ------------------------------------------------------------------ ALiBi and norms of q and k

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

Variants HeadNorm(const AttentionFacts& f, std::vector<std::pair<Change, const char*>> changes) {
  if (f.norm.place == NormPlace::kNone) return {};
  Variants variants;
  for (auto& [change, detail] : changes) variants.push_back({std::move(change), detail});
  return variants;
}
Variants HeadNormMissing(const AttentionFacts& f) {
  return HeadNorm(f, {{[](Recipe* r) { r->norm.place = NormPlace::kNone; }, "of q and k"},
                      {[](Recipe* r) { r->norm.q = false; }, "of q"},
                      {[](Recipe* r) { r->norm.k = false; }, "of k"}});
}
Variants HeadNormAfterRope(const AttentionFacts& f) {
  if (!f.norm_stated || f.rotary == 0) return {};
  const bool before = f.norm.place == NormPlace::kBeforeRotation;
  const NormPlace other = before ? NormPlace::kAfterRotation : NormPlace::kBeforeRotation;
  return HeadNorm(f, {{[other](Recipe* r) { r->norm.place = other; },
                       before ? "" : "the norm stands before the rotation"}});
}
Variants HeadNormAxis(const AttentionFacts& f) {
  if (f.H == 1) return {};
  return HeadNorm(f, {{[](Recipe* r) { r->norm.all_heads = !r->norm.all_heads; },
                       f.norm.all_heads ? "each head by itself" : "all heads together"}});
}
Variants HeadNormGain(const AttentionFacts& f) {
  if (!f.gains) return {};
  Variants variants = HeadNorm(f, {{[](Recipe* r) { r->norm.gain = false; }, ""}});
  if (!f.norm_bias) return variants;
  return Joined(variants,
                HeadNorm(f, {{[](Recipe* r) { r->norm.bias = false; }, "the bias is not added"},
                             {[](Recipe* r) { r->norm.gain = r->norm.bias = false; },
                              "the bias is not added either"}}));
}
Variants HeadNormKind(const AttentionFacts& f) {
  if (!f.norm_kind_stated) return {};
  Variants variants = HeadNorm(f, {{[](Recipe* r) { r->norm.layer = !r->norm.layer; },
                                    f.norm.layer ? "an RMS norm stands for a LayerNorm"
                                                 : "a LayerNorm stands for an RMS norm"}});
  if (!f.norm_bias) return variants;
  return Joined(variants, HeadNorm(f, {{[](Recipe* r) { r->norm.layer = r->norm.bias = false; },
                                        "an RMS norm without bias stands for a LayerNorm"}}));
}

// ------------------------------------------------------------------ scores and softmax

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
Variants ScaleZero(const AttentionFacts&) { return Scaled(0); }
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

// ------------------------------------------------------------------ heads and projections

Variants HeadsNotSplit(const AttentionFacts& f) {
  if (!f.weights || f.T == 1 || f.H == 1) return {};
  return {One([](Recipe* r) { r->project.split_by_view = true; }),
          One(
              [](Recipe* r) {
                r->project.split_by_view = true;
                r->combine.merge = MergeKind::kUntransposed;
              },
              "merged the same way")};
}

Variants Merge(MergeKind kind, std::string detail = "") {
  return {One([kind](Recipe* r) { r->combine.merge = kind; }, std::move(detail))};
}

Variants MergedUntransposed(const AttentionFacts&) { return Merge(MergeKind::kUntransposed); }
Variants MergedWrongLead(const AttentionFacts& f) {
  if (f.B == 1 || f.H == 1) return {};
  Variants variants = Merge(MergeKind::kHeadsLead, "stacked (H, B), split (B, H)");
  variants.push_back(Merge(MergeKind::kBatchLeads, "stacked (B, H), split (H, B)")[0]);
  return variants;
}

Variants HeadsMapped(HeadMap map) {
  return {One([map](Recipe* r) { r->cache.heads = map; })};
}

Variants GqaTiled(const AttentionFacts&) { return HeadsMapped(HeadMap::kTiled); }
Variants GqaDivisor(const AttentionFacts& f) {
  if (f.Hkv == 1) return {};
  Variants variants;
  for (const HeadMap map : {HeadMap::kByKvCount, HeadMap::kByKvCountWrapped, HeadMap::kFirst}) {
    variants.push_back(HeadsMapped(map)[0]);
  }
  return variants;
}
Variants GqaRepeatAxis(const AttentionFacts& f) {
  return f.H == f.Hkv ? Variants() : HeadsMapped(HeadMap::kAlongTime);
}

Variant From(Slot q, Slot k, Slot v, std::string detail = "") {
  return One([q, k, v](Recipe* r) { r->project.source = {q, k, v}; }, std::move(detail));
}

constexpr Slot kQ = Slot::kQ, kK = Slot::kK, kV = Slot::kV;

Variants QkFromOne(const AttentionFacts& f) {
  Variants variants = {From(kQ, kK, kK, "v is k"), From(kQ, kV, kV, "k is v")};
  if (f.H != f.Hkv) return variants;
  variants.insert(variants.begin(), {From(kK, kK, kV, "q is k"), From(kK, kK, kK, "q and v are k"),
                                     From(kQ, kQ, kV, "k is q"), From(kQ, kQ, kQ, "k and v are q"),
                                     From(kV, kV, kV, "q and k are v"), From(kQ, kK, kQ, "v is q"),
                                     From(kV, kK, kV, "q is v")});
  return variants;
}

// Rows of a fused weight that are taken in another order have a name of their own.
bool OrderIsTold(const AttentionFacts& f) { return f.fused && f.layout_stated; }

Variants QkSwapped(const AttentionFacts& f) {
  return f.H != f.Hkv || OrderIsTold(f) ? Variants() : Variants{From(kK, kQ, kV)};
}

Variants KvSwapped(const AttentionFacts& f) {
  Variants variants;
  if (!OrderIsTold(f)) variants.push_back(From(kQ, kV, kK));
  if (f.rotary > 0) {
    variants.push_back(One(
        [](Recipe* r) {
          r->project.source = {kQ, kV, kK};
          r->rotate.k_sense = 0;
          r->rotate.v_sense = 1;
        },
        "exchanged behind the rotation"));
  }
  if (f.P == 0) return variants;
  const size_t count = variants.size();
  for (size_t i = 0; i < count; ++i) {
    variants.push_back(One(
        [change = variants[i].change](Recipe* r) {
          change(r);
          r->cache.cache = CacheChoice::kSwapped;
        },
        "in the cache and the chunk"));
  }
  variants.push_back(
      One([](Recipe* r) { r->cache.cache = CacheChoice::kSwapped; }, "in the cache alone"));
  return variants;
}

constexpr std::array<Slot, 3> kOrders[] = {
    {kQ, kV, kK}, {kK, kQ, kV}, {kK, kV, kQ}, {kV, kQ, kK}, {kV, kK, kQ}};

std::string OrderName(const std::array<Slot, 3>& order) {
  std::string name;
  for (const Slot slot : order) {
    name += (name.empty() ? "" : ", ") + std::string(1, "qkv"[static_cast<size_t>(slot)]);
  }
  return name;
}

Variants QkvOrder(const AttentionFacts& f) {
  Variants variants;
  for (const std::array<Slot, 3>& order : kOrders) {
    if (f.fused) {
      if (!f.layout_stated) continue;
      variants.push_back(One([order](Recipe* r) { r->project.fused_order = order; },
                             "rows are taken as " + OrderName(order)));
    } else if (f.H == f.Hkv && f.weights) {
      // Exchanges of two have names of their own.
      if (order == kOrders[0] || order == kOrders[1]) continue;
      variants.push_back(One([order](Recipe* r) { r->project.source = order; },
                             "q, k, v are taken from " + OrderName(order)));
    }
  }
  return variants;
}

Variants QkvPieces(const AttentionFacts& f, std::vector<int64_t> pieces) {
  Variants variants;
  for (const int64_t count : pieces) {
    if (f.H % count != 0 || f.Hkv % count != 0) continue;
    variants.push_back(
        One([count](Recipe* r) { r->project.fused_pieces = count; },
            fmt::format("read as {} piece{} of q, k and v", count, count == 1 ? "" : "s")));
  }
  return variants;
}

Variants QkvPerHead(const AttentionFacts& f) {
  if (!f.fused || !f.layout_stated) return {};
  return QkvPieces(f, {1, f.Hkv});
}
Variants QkvShards(const AttentionFacts& f) {
  if (!f.fused) return {};
  std::vector<int64_t> pieces;
  for (int64_t count = 2; count < f.Hkv; ++count) pieces.push_back(count);
  return QkvPieces(f, pieces);
}

std::string ProjectionNames(uint8_t bits) {
  std::string names;
  const char* const words[] = {"q", "k", "v", "o"};
  for (int i = 0; i < 4; ++i) {
    if (bits >> i & 1) names += (names.empty() ? "" : ", ") + std::string(words[i]);
  }
  return names;
}

Variants BiasMissing(const AttentionFacts& f) {
  Variants variants;
  for (const uint8_t bits :
       {kQProj, kVProj, kOProj, kKProj, Projections(kQProj | kKProj | kVProj),
        Projections(kQProj | kKProj), Projections(kVProj | kOProj), kAllProj}) {
    if ((bits & f.biases) == 0 || (bits & ~f.biases & 15) != 0) continue;
    variants.push_back(
        One([bits](Recipe* r) { r->project.without_bias = bits; }, "of " + ProjectionNames(bits)));
  }
  return variants;
}

Variants LinearTransposed(const AttentionFacts& f) {
  Variants variants;
  for (const uint8_t bits :
       {kQProj, kKProj, kVProj, kOProj, Projections(kQProj | kKProj | kVProj), kAllProj}) {
    if ((bits & ~f.square & 15) != 0 || (bits == kAllProj && !f.linear_stated)) continue;
    variants.push_back(
        One([bits](Recipe* r) { r->project.transposed ^= bits; }, "of " + ProjectionNames(bits)));
  }
  return variants;
}

Variants BatchAttended(const AttentionFacts& f) {
  if (f.B == 1 || f.P > 0) return {};
  return {One([](Recipe* r) { r->project.batch_as_time = true; })};
}

// ------------------------------------------------------------------ positions

template <class Set>
Variants Turned(const AttentionFacts& f, Set set) {
  return f.rotary == 0 ? Variants() : Variants{One(set)};
}

Variants RopePairing_(const AttentionFacts& f) {
  if (!f.pairing_stated) return {};
  return Turned(f, [](Recipe* r) { r->rotate.interleaved = !r->rotate.interleaved; });
}

Variants RopeNotReinterleaved(const AttentionFacts& f) {
  if (f.rotary == 0) return {};
  const auto halves = [](bool q, bool k) {
    return [q, k](Recipe* r) {
      r->rotate.q_halves = q;
      r->rotate.k_halves = k;
    };
  };
  return {One(halves(true, false), "of q"), One(halves(false, true), "of k"),
          One(halves(true, true), "of q and k")};
}

Variants RopeByHead(const AttentionFacts& f) {
  return Turned(f, [](Recipe* r) { r->rotate.by_head = true; });
}

Variants Senses(const AttentionFacts& f, double q, double k, std::string detail = "") {
  if (f.rotary == 0) return {};
  return {One(
      [q, k](Recipe* r) {
        r->rotate.q_sense = q;
        r->rotate.k_sense = k;
      },
      std::move(detail))};
}

Variants RopeMissing(const AttentionFacts& f) {
  return Joined(Senses(f, 0, 0, "of q and k"),
                Joined(Senses(f, 0, 1, "of q"), Senses(f, 1, 0, "of k")));
}
Variants RopeSign(const AttentionFacts& f) { return Senses(f, -1, -1); }
Variants RopeKSign(const AttentionFacts& f) {
  return Joined(Senses(f, 1, -1, "k turns backwards"), Senses(f, -1, 1, "q turns backwards"));
}
Variants RopeOnV(const AttentionFacts& f) {
  return Turned(f, [](Recipe* r) { r->rotate.v_sense = 1; });
}

Fits RopeTheta(const AttentionFacts& f) {
  if (f.rotary < 4) return {};
  std::vector<double> grid;
  for (double theta = 1.5; theta < 3e8; theta *= 1.6) grid.push_back(theta);
  // What checkpoints have.
  for (const double theta : {100., 1000., 1e4, 1e5, 5e5, 1e6, 5e6}) grid.push_back(theta);
  std::ranges::sort(grid);
  return {{.grid = std::move(grid),
           .change = [](double theta, Recipe* r) { r->rotate.theta = theta; },
           .belongs = [right = f.theta](
                          double theta) { return std::abs(std::log(theta / right)) > 0.003; },
           .detail = [](double theta) { return fmt::format("theta {:.6g}", theta); }}};
}

Variants Widths(const AttentionFacts& f, std::vector<std::pair<WidthChoice, const char*>> kinds) {
  if (f.rotary == 0 || f.rotary == f.D) return {};
  Variants variants;
  for (const auto& [width, detail] : kinds) {
    variants.push_back(One([width = width](Recipe* r) { r->rotate.width = width; }, detail));
  }
  return variants;
}

Variants RopePartialIgnored(const AttentionFacts& f) {
  return Widths(f, {{WidthChoice::kWholeHead, ""}});
}
Variants RopeWidth(const AttentionFacts& f) {
  return Widths(f, {{WidthChoice::kHeadBoth, "exponents and partners"},
                    {WidthChoice::kHeadExponent, "exponents"},
                    {WidthChoice::kHeadPartner, "partners"}});
}

Variants RopeLowPrecision(const AttentionFacts& f) {
  if (f.rotary == 0) return {};
  const std::pair<AngleRounding, const char*> kinds[] = {
      {AngleRounding::kPositions, "positions"},
      {AngleRounding::kFrequencies, "frequencies"},
      {AngleRounding::kAngles, "angles"},
      {AngleRounding::kTables, "cosines and sines"},
      {AngleRounding::kAll, "all"}};
  Variants variants;
  for (const bool half : {false, true}) {
    for (const auto& [what, name] : kinds) {
      variants.push_back(One(
          [half, what = what](Recipe* r) {
            r->rotate.rounding = what;
            r->rotate.rounding_is_half = half;
          },
          fmt::format("{} in {}", name, half ? "float16" : "bfloat16")));
    }
  }
  return variants;
}

Variants RopeForm(const AttentionFacts& f, RotationForm form) {
  return Turned(f, [form](Recipe* r) { r->rotate.form = form; });
}
Variants RopeMixed(const AttentionFacts& f) { return RopeForm(f, RotationForm::kMixedLayouts); }
Variants RopeCosPlusSin(const AttentionFacts& f) { return RopeForm(f, RotationForm::kCosPlusSin); }

Variants Positions(const AttentionFacts& f, PositionChoice choice) {
  if (f.P == 0) return {};
  return Turned(f, [choice](Recipe* r) { r->rotate.position = choice; });
}
Variants PositionRestart(const AttentionFacts& f) { return Positions(f, PositionChoice::kRestart); }
Variants RopeChunkConstant(const AttentionFacts& f) {
  return Positions(f, PositionChoice::kChunkConstant);
}
Variants PositionUpper(const AttentionFacts& f) { return Positions(f, PositionChoice::kOneTooFar); }
Variants KeptRows(const AttentionFacts& f) {
  return f.first == 0 ? Variants() : Positions(f, PositionChoice::kKeptRows);
}
// Behind a cache, the chunk is a piece of its own; else the keys came in pieces of one length, or
// in two.
Variants FragmentsJoined(const AttentionFacts& f) {
  if (f.rotary == 0) return {};
  const auto pieces = [](int64_t rows) {
    return One([rows](Recipe* r) { r->rotate.key_piece = rows; },
               fmt::format("pieces of {} keys", rows));
  };
  if (f.P > 0) return {pieces(f.T)};
  constexpr int64_t kLongest = 32;
  Variants variants;
  for (int64_t rows = 2; rows < std::min(f.T, kLongest); ++rows) {
    variants.push_back(pieces(rows));
    if (2 * rows >= f.T) continue;
    variants.push_back(One([rows](Recipe* r) { r->rotate.first_piece = rows; },
                           fmt::format("a piece of {} keys and the others", rows)));
  }
  return variants;
}
Variants RopeTwice(const AttentionFacts& f) {
  if (f.P == 0) return Senses(f, 2, 2);
  return Turned(f, [](Recipe* r) { r->cache.cache = CacheChoice::kTurnedAgain; });
}

// ------------------------------------------------------------------ cache

Variants Cached(const AttentionFacts& f, std::vector<std::pair<CacheChoice, const char*>> choices) {
  if (f.P == 0) return {};
  Variants variants;
  for (const auto& [choice, detail] : choices) {
    variants.push_back(One([choice = choice](Recipe* r) { r->cache.cache = choice; }, detail));
  }
  return variants;
}

Variants CacheHole(const AttentionFacts& f) {
  Variants variants = Cached(
      f, {{CacheChoice::kHole, "a row of zeros is read"},
          {CacheChoice::kHoleLastLost, "a row of zeros is read in place of the last new one"}});
  if (f.rotary == 0) return variants;
  const size_t count = variants.size();
  for (size_t i = 0; i < count; ++i) {
    variants.push_back(One(
        [change = variants[i].change](Recipe* r) {
          change(r);
          r->rotate.position = PositionChoice::kOneTooFar;
        },
        variants[i].detail));
  }
  return variants;
}
// A ring as long as the window, or as the cache.
Variants RingOverwritten(const AttentionFacts& f) {
  const int64_t capacity = f.window > 0 && f.window <= f.P ? f.window : f.P;
  if (f.T >= capacity) return {};
  std::vector<std::pair<CacheChoice, const char*>> choices = {
      {CacheChoice::kRingClamped, "the chunk is written over the newest rows"}};
  // A single token in place of the oldest leaves all that its query may see.
  if (f.T > 1) {
    choices.emplace_back(CacheChoice::kRingBySlot, "keys are taken in the order of their slots");
    choices.emplace_back(CacheChoice::kRingEarly,
                         "the chunk's last tokens are written over keys of its first queries");
  }
  return Cached(f, std::move(choices));
}
Variants PrefixMisaligned(const AttentionFacts& f) {
  Variants variants;
  constexpr int64_t kMost = 8;
  for (int64_t count = 1; count < std::min(f.P, kMost); ++count) {
    variants.push_back(One(
        [count](Recipe* r) {
          r->cache.cache = CacheChoice::kEndSkipped;
          r->cache.skipped = count;
        },
        fmt::format("the last {} of {} cached rows are never seen", count, f.P)));
  }
  return variants;
}
Variants CacheNotRead(const AttentionFacts& f) { return Cached(f, {{CacheChoice::kNotRead, ""}}); }
Variants CacheStride(const AttentionFacts& f) {
  return f.Hkv == 1 ? Variants() : Cached(f, {{CacheChoice::kJoinedFlat, ""}});
}
Variants BeamCache(const AttentionFacts& f) {
  if (f.B == 1) return {};
  return Cached(f, {{CacheChoice::kBatchReversed, "in reversed order"},
                    {CacheChoice::kBatchRolled, "of the row before"},
                    {CacheChoice::kBatchRolledBack, "of the row behind"}});
}
Variants CacheReinterpreted(const AttentionFacts& f) {
  return Cached(f, {{CacheChoice::kBf16ReadAsF16, "bfloat16 read as float16"},
                    {CacheChoice::kF16ReadAsBf16, "float16 read as bfloat16"}});
}

// Entries: identifier, what is wrong, the repair, the right line in PyTorch and in C++, the test.
const AttentionFault kFaults[] = {
    // Cache.
    {{"position_restart", "behind a cache, new tokens are numbered from 0 again",
      "number new tokens from the count of cached ones",
      "pos = torch.arange(past_len, past_len + T)", "const int64_t position = past + t;",
      "the first decode step turns q and k as position 0; without a cache all is equal"},
     PositionRestart},
    {{"causal_align_top_left",
      "with more keys than queries, query i sees keys 0..i in place of 0..i+S-T",
      "align the triangle at the last key", "mask = torch.ones(T, S).tril(diagonal=S - T).bool()",
      "visible = j <= past + i;", "a one-token step answers v_0; equal when T = S"},
     AlignTopLeft},
    {{"cache_not_read", "decoding attends to the new tokens alone",
      "join cached and new keys and values before the products",
      "k = torch.cat([past_k, k], dim=2); v = torch.cat([past_v, v], dim=2)",
      "for (int64_t j = 0; j < past + T; ++j) score(q, keys[j]);",
      "a one-token step answers its own v; other cached numbers change nothing"},
     CacheNotRead},
    {{"cache_hole", "the write index is one too far: an empty slot is read",
      "write at the count of cached rows, then raise the count",
      "cache[:, :, past_len:past_len + T] = k", "copy(k, cache + past * D); past += T;",
      "fill spare slots with 1e9: the output explodes"},
     CacheHole},
    {{"rope_window_constant", "all tokens of a chunk turn by the position of its first",
      "give every token of the chunk its own position",
      "pos = torch.arange(past_len, past_len + T)", "angle = (past + t) * frequency[i];",
      "row 0 of the chunk is equal, later rows differ; one-token steps are right"},
     RopeChunkConstant},
    {{"position_upper_layers", "new tokens are numbered one too far",
      "advance the length once for each step, behind the last layer",
      "pos = torch.arange(past_len, past_len + T)", "if (layer + 1 == n_layer) length += T;",
      "layer 0 is equal; in layers above, new keys are turned one step further"},
     PositionUpper},
    {{"evicted_length_as_position", "the count of kept rows is taken for the position",
      "keep the number of tokens seen apart from the number of rows kept",
      "pos = torch.arange(seen, seen + T)", "const int64_t position = seen + t;",
      "equal until the first eviction"},
     KeptRows},
    {{"rope_table_cache_key", "tables of angles are kept by length alone, without the offset",
      "key the tables by offset and length", "cos = self.cos[past_len:past_len + T]",
      "table = angles(past, T);",
      "a second chunk of the first one's length is turned as the first; of another, rightly"}},
    {{"rope_twice", "what was rotated is rotated again",
      "store rotated keys and turn only new ones",
      "k_cache = torch.cat([k_cache, rope(k_new, pos)], dim=2)",
      "rotate(k_new, past); append(cache, k_new);",
      "the oldest keys are worst, the newest equal; without a cache all angles are doubled"},
     RopeTwice},
    {{"cache_head_stride", "cached and new rows are joined across the borders of heads",
      "step from head to head by the cache's own length",
      "k = torch.cat([past_k, k], dim=2)  # along time", "row = cache + (h * capacity + t) * D;",
      "give every head a constant: one head's rows are found in another"},
     CacheStride},
    {{"ring_cache_overwrite", "writing into a full ring loses keys or their order",
      "attend before a key is overwritten, and mask by position, not by slot",
      "slots = (past_len + torch.arange(T)) % window; visible = key_pos[None] <= pos[:, None]",
      "slot = position % window; visible = key_position[slot] <= position;",
      "equal until the ring is full; the same suffix from another slot must answer the same"},
     RingOverwritten},
    {{"rope_fragments_joined", "pieces of keys are joined that were turned from position 0 each",
      "turn every piece to its place in the whole",
      "k = torch.cat([rope(piece, start + torch.arange(n)) for start, n, piece in pieces], dim=2)",
      "rotate(piece, start + t);", "keys of the first piece are equal, those behind it are not"},
     FragmentsJoined},
    {{"beam_cache_not_reordered", "the cache belongs to other rows of the batch",
      "reorder the cache with the beams", "past_k = past_k.index_select(0, beam_idx)",
      "cache = gather(cache, beam);", "swap two beams by force: outputs must follow"},
     BeamCache},
    {{"cache_dtype_reinterpreted", "the cache's bits are read as the other 16-bit type",
      "read the cache in the type it was written in", "past_k = past_k.to(k.dtype)  # not .view",
      "float x = F16ToFloat(bits);", "replay the cache with its bits read as the other type"},
     CacheReinterpreted},
    {{"prefix_reuse_misaligned",
      "a reused prefix is counted in another tokenisation, so that part of the prompt is never "
      "seen",
      "count what is reused in the tokens that are run", "past_len = past_k.size(2)",
      "past = cache.length();", "change a token at the end of the prefix: nothing moves"},
     PrefixMisaligned},
    // Mask.
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
    // Scores and softmax.
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
    // Heads and projections.
    {{"heads_not_split", "[B, T, H*D] is viewed as [B, H, T, D] without moving an axis",
      "view as [B, T, H, D], then exchange T and H", "q = q.view(B, T, H, D).transpose(1, 2)",
      "q = x + t * H * D + h * D;", "change token 0: other tokens' q move before attention"},
     HeadsNotSplit},
    {{"heads_merged_untransposed", "[B, H, T, D] is reshaped to [B, T, H*D] in place",
      "exchange H and T before merging", "y = z.transpose(1, 2).reshape(B, T, H * D)",
      "merged[(t * H + h) * D + d] = z[(h * T + t) * D + d];",
      "equal when H = 1 or T = 1; rows before a changed token move"},
     MergedUntransposed},
    {{"heads_merged_wrong_lead", "heads and batch are stacked one way and taken apart the other",
      "take them apart in the order in which they were stacked",
      "z = z.view(H, B, T, D)  # stacked by torch.cat(heads, dim=0)", "z + (h * B + b) * T * D",
      "equal for B = 1; samples are mixed"},
     MergedWrongLead},
    {{"gqa_tiled", "query head h reads key/value head h mod n_kv_head",
      "repeat every key/value head for its own group",
      "k = k.repeat_interleave(H // Hkv, dim=1)  # not .repeat", "kv = h / (H / Hkv);",
      "give each key/value head its own constant v"},
     GqaTiled},
    {{"gqa_divisor", "the head's index is divided by the wrong count",
      "divide by n_head / n_kv_head", "k = k.repeat_interleave(H // Hkv, dim=1)",
      "kv = h / (H / Hkv);", "constant v for each key/value head shows which are read"},
     GqaDivisor},
    {{"gqa_repeat_axis", "keys and values are repeated along time, not along the heads",
      "repeat along the axis of heads", "k = k.repeat_interleave(H // Hkv, dim=1)",
      "kv = h / (H / Hkv);", "keys of one head come in runs"},
     GqaRepeatAxis},
    {{"qk_swapped", "q and k are exchanged", "give each projection its own name's weight",
      "q, k = self.q_proj(x), self.k_proj(x)", "project(x, w_q, q); project(x, w_k, k);",
      "scores are transposed before the mask"},
     QkSwapped},
    {{"kv_swapped", "k and v are exchanged", "give each projection its own name's weight",
      "k, v = self.k_proj(x), self.v_proj(x)", "project(x, w_k, k); project(x, w_v, v);",
      "what is cached as k is x W_v"},
     KvSwapped},
    {{"qk_from_one_tensor", "several of q, k and v come from one projection",
      "use one projection for each", "q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)",
      "project(x, w_q, q); project(x, w_k, k); project(x, w_v, v);",
      "replay with one weight for the other"},
     QkFromOne},
    {{"qkv_order", "q, k and v are taken from the fused rows in another order",
      "split in the order in which the weight was written",
      "q, k, v = self.c_attn(x).split([H * D, Hkv * D, Hkv * D], dim=2)",
      "k = qkv + H * D; v = k + Hkv * D;", "replay the six orders"},
     QkvOrder},
    {{"qkv_per_head_layout", "fused rows for each head are split as blocks, or the reverse",
      "split as the weight was written",
      "q, k, v = qkv.view(B, T, Hkv, H // Hkv + 2, D).split([H // Hkv, 1, 1], dim=3)",
      "q = qkv + kv * (group + 2) * D;", "replay both layouts; equal for one head"},
     QkvPerHead},
    {{"qkv_tp_layout", "fused rows in shares for several devices are read as one piece, or reverse",
      "join the shares first", "q, k, v = zip(*(s.chunk(3, 0) for s in shards))",
      "row = (device * 3 + part) * share + r;",
      "replay for every number of devices that divides the heads"},
     QkvShards},
    {{"qk_norm_missing", "q, k or both are not normalised", "normalise both, head by head",
      "q, k = self.q_norm(q), self.k_norm(k)", "normalise(q, D); normalise(k, D);",
      "make q ten times as large: the output must not move"},
     HeadNormMissing},
    {{"qk_norm_after_rope", "q and k are normalised on the other side of the rotation",
      "keep the order that the gains were trained in", "q = rope(self.q_norm(q), pos)",
      "normalise(q, D); rotate(q, position);",
      "equal without gains and at position 0; with gains different from row 1 on"},
     HeadNormAfterRope},
    {{"qk_norm_axis", "the norm runs over all heads together where it should over each, or reverse",
      "normalise what the gain's width says",
      "q = self.q_norm(q.view(B, T, H, D))  # a gain of [H*D]: before the view",
      "normalise(q + h * D, D);", "make head 1 ten times as large: does head 0 move?"},
     HeadNormAxis},
    {{"qk_norm_gain_missing", "the norm of q and k is not multiplied by its gain", "apply the gain",
      "q = F.rms_norm(q, (D,), self.q_norm.weight, eps)", "q[d] *= rstd * gain[d];",
      "heads have length sqrt(D), all of them"},
     HeadNormGain},
    {{"qk_norm_kind", "the mean of q and k is subtracted where it should not be, or reverse",
      "use the norm that the gains were trained in", "self.q_norm = nn.RMSNorm(D, eps)",
      "const double mean = 0;  // a LayerNorm's is that of the head",
      "add a constant to all channels of q: behind a LayerNorm nothing moves"},
     HeadNormKind},
    {{"bias_missing", "a projection's bias is left out", "load and add the bias",
      "nn.Linear(C, H * D, bias=True)", "y[j] = bias[j] + dot(x, w + j * C, C);",
      "with x = 0 the projection answers its bias; a key bias shows with RoPE alone"},
     BiasMissing},
    {{"linear_transposed", "a square weight is used transposed",
      "multiply by W^T of an [out, in] W", "y = x @ W.T  # nn.Linear's W; Conv1D's is x @ W",
      "y[j] += x[c] * w[j * C + c];", "other shapes refuse; replay the square one transposed"},
     LinearTransposed},
    {{"batch_axis_attended", "attention runs over the batch: sequence-first and batch-first mixed",
      "say batch_first, or move the axes", "nn.MultiheadAttention(C, H, batch_first=True)",
      "x + (b * T + t) * C", "permute the batch: outputs change; a batch of 1 answers v alone"},
     BatchAttended},
    // Positions.
    {{"rope_pairing", "the other pairing of channels: (2i, 2i+1) for (i, i+D/2), or the reverse",
      "pair as the weights expect",
      "x1, x2 = x[..., :D // 2], x[..., D // 2:]  # or x[..., 0::2], x[..., 1::2]",
      "x0 = x[i]; x1 = x[i + D / 2];", "row 0 is equal, the difference grows with the position"},
     RopePairing_},
    {{"rope_missing", "q, k or both are not rotated", "rotate q and k on every path",
      "q, k = rope(q, pos), rope(k, pos)", "rotate(q, position); rotate(k, position);",
      "permute the tokens before the last: without rotation its row does not move"},
     RopeMissing},
    {{"rope_sign", "q and k rotate the other way", "turn by +position * frequency",
      "y1, y2 = x1 * cos - x2 * sin, x1 * sin + x2 * cos", "y0 = x0 * c - x1 * s;",
      "replay with negative positions"},
     RopeSign},
    {{"rope_k_sign_only", "q and k rotate in opposite senses", "turn both by +position * frequency",
      "q, k = rope(q, pos), rope(k, pos)", "rotate(q, position); rotate(k, position);",
      "shift all positions by 7: the output must not move"},
     RopeKSign},
    {{"rope_on_v", "values are rotated too", "rotate q and k alone",
      "q, k = rope(q, pos), rope(k, pos)", "rotate(q, position); rotate(k, position);",
      "row 0 at position 0 is equal; v differs from x W_v by a rotation"},
     RopeOnV},
    {{"rope_output_not_reinterleaved", "rotated halves are joined, not interleaved again",
      "put even and odd channels back in their places",
      "y = torch.stack([y1, y2], dim=-1).flatten(-2)", "y[2 * i] = y0; y[2 * i + 1] = y1;",
      "of q alone: differs at position 0 too; of both: the scores are equal"},
     RopeNotReinterleaved},
    {{"rope_wrong_axis", "angles follow the index of the head, not of time",
      "index the tables by position", "cos = cos[pos][None, None]  # x is [B, H, T, D]",
      "angle = position * frequency[i];",
      "permute the tokens before the last: its row must move, and does not"},
     RopeByHead},
    {{"rope_partial_ignored", "the whole head is rotated where only its first part should be",
      "rotate the first rotary_dim channels", "x_rot, x_pass = x[..., :r], x[..., r:]",
      "for (int64_t i = 0; i < rotary_dim / 2; ++i) turn(x, i);",
      "the tail channels of q_rot must equal q"},
     RopePartialIgnored},
    {{"rope_freq_width", "a partial rotation takes exponents or partners from the head's width",
      "use rotary_dim for both", "inv_freq = theta ** (-torch.arange(0, r, 2) / r)",
      "frequency = std::pow(theta, -2.0 * i / rotary_dim);",
      "row 0 is equal; compare the rotated q, not the tables"},
     RopeWidth},
    {{"rope_low_precision", "positions, angles or tables are rounded to 16 bits",
      "compute angles in float32 at least", "angle = pos.float()[:, None] * inv_freq.float()",
      "const double angle = position * frequency;",
      "nearly equal at small positions, worse with length"},
     RopeLowPrecision},
    {{"rope_mixed_layouts", "tables laid out for one pairing meet the other's partners",
      "lay out the tables as the channels are paired",
      "cos = torch.cat([c, c], dim=-1)  # halves; interleaved: c.repeat_interleave(2, -1)",
      "c = cos[i]; x0 = x[i]; x1 = x[i + D / 2];",
      "partners turn by different angles, so that lengths change"},
     RopeMixed},
    {{"rope_cos_plus_sin", "x (cos + sin) stands for a rotation", "multiply sin by the turned x",
      "y = x * cos + rotate_half(x) * sin", "y0 = x0 * c - x1 * s; y1 = x0 * s + x1 * c;",
      "lengths change with the position"},
     RopeCosPlusSin},
    {{"rope_theta", "the base of the angles is another", "use the base of the checkpoint",
      "inv_freq = theta ** (-torch.arange(0, D, 2) / D)",
      "frequency = std::pow(theta, -2.0 * i / D);", "fit theta to q_rot and k_rot"},
     nullptr,
     RopeTheta},
};

}  // namespace

std::span<const AttentionFault> AttentionFaultTable() { return kFaults; }

std::span<const FaultKind> AttentionFaults() {
  static const std::vector<FaultKind> kKinds = [] {
    std::vector<FaultKind> kinds;
    for (const AttentionFault& fault : kFaults) kinds.push_back(fault.kind);
    return kinds;
  }();
  return kKinds;
}

}  // namespace heed
