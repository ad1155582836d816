#include <fmt/format.h>

#include <array>

#include "verify/diagnose/attention_fault_lists.h"

namespace heed::attention_faults {
namespace {

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

const AttentionFault kFaults[] = {
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
};

}  // namespace

std::span<const AttentionFault> OfProjections() { return kFaults; }

}  // namespace heed::attention_faults
