#include "inspect/attention_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/quote.h"
#include "tensor/convert.h"
#include "tensor/shape.h"

namespace heed {
namespace {

// Scores and pattern then take 1 GiB.
constexpr int64_t kMostScores = int64_t{1} << 26;

constexpr const char* kKnownWords[] = {"x",
                                       "q",
                                       "k",
                                       "v",
                                       "past_k",
                                       "past_v",
                                       "dy",
                                       "y",
                                       "q_rot",
                                       "k_rot",
                                       "scores",
                                       "pattern",
                                       "z",
                                       "merged",
                                       "attention_mask",
                                       "position_ids",
                                       "document_ids",
                                       "q_norm.weight",
                                       "k_norm.weight",
                                       "in_proj_weight",
                                       "c_attn.weight",
                                       "q_proj.weight",
                                       "k_proj.weight",
                                       "v_proj.weight",
                                       "o_proj.weight",
                                       "out_proj.weight",
                                       "c_proj.weight",
                                       "q_proj.bias",
                                       "k_proj.bias",
                                       "v_proj.bias",
                                       "o_proj.bias",
                                       "c_attn.bias",
                                       "in_proj_bias",
                                       "out_proj.bias",
                                       "c_proj.bias"};

constexpr const char* kLinearHint = "torch.nn.Linear keeps its weight as [out, in]";

bool EndsInWord(std::string_view name, std::string_view word) {
  if (!name.ends_with(word)) return false;
  if (name.size() == word.size()) return true;
  return std::string_view("./_").find(name[name.size() - word.size() - 1]) !=
         std::string_view::npos;
}

// Results that a file may hold beside its inputs.
bool IsResult(std::string_view name) {
  return name.starts_with("grad.") || name.starts_with("expect.") || name.starts_with("after.");
}

class CaseReader {
 public:
  CaseReader(const TensorFile& file, const std::string& where, AttentionSettings settings,
             WeightLayouts layouts)
      : file_(file), where_(where), layouts_(layouts) {
    case_.settings = std::move(settings);
  }

  Result<AttentionCase> Read() {
    HEED_ASSIGN(const TensorEntry* fused, FindWeight("c_attn.weight"));
    if (fused == nullptr) {
      HEED_ASSIGN(fused, FindWeight("in_proj_weight"));
    }
    HEED_ASSIGN(const TensorEntry* query, FindWeight("q_proj.weight"));
    const bool weights = fused != nullptr || query != nullptr;
    if (fused != nullptr && query != nullptr) {
      return Fail(ErrorKind::kFormat, where_, Quoted(fused->name) + " and " + Quoted(query->name),
                  "one of them", "leave out the one that is not meant");
    }
    if (!weights && file_.Find("q") != nullptr) {
      HEED_TRY(ReadHeads());
    } else if (fused != nullptr) {
      HEED_TRY(ReadFused(*fused));
    } else {
      HEED_TRY(ReadSplit(query));
    }
    HEED_TRY(ReadPast());
    HEED_TRY(ReadOutputGradient());
    return std::move(case_);
  }

 private:
  // q, k and v as they are.
  Status ReadHeads() {
    HEED_ASSIGN(const TensorEntry* q, Require("q", "[B, n_head, T, head_dim]"));
    HEED_ASSIGN(const TensorEntry* k, Require("k", "[B, n_kv_head, T, head_dim]"));
    HEED_ASSIGN(const TensorEntry* v, Require("v", "[B, n_kv_head, T, head_dim]"));
    HEED_TRY(CheckRank(*q, 4, "[B, n_head, T, head_dim]"));
    HEED_TRY(CheckRank(*k, 4, "[B, n_kv_head, T, head_dim]"));
    case_.B = q->shape[0];
    case_.T = q->shape[2];
    case_.dtype = q->dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    AttentionSettings& settings = case_.settings;
    HEED_TRY(Settle("n_head", q->shape[1], *q, &settings.n_head));
    HEED_TRY(Settle("head_dim", q->shape[3], *q, &settings.head_dim));
    HEED_TRY(Settle("n_kv_head", k->shape[1], *k, &settings.n_kv_head));
    HEED_TRY(CheckSizes());
    const std::vector<int64_t> shape = {case_.B, settings.n_kv_head, case_.T, settings.head_dim};
    HEED_TRY(CheckShape(*k, shape, "[B, n_kv_head, T, head_dim]",
                        "keys of earlier positions are past_k and past_v"));
    HEED_TRY(CheckShape(*v, shape, "[B, n_kv_head, T, head_dim]",
                        "keys of earlier positions are past_k and past_v"));
    HEED_ASSIGN(case_.q, file_.Doubles("q"));
    HEED_ASSIGN(case_.k, file_.Doubles("k"));
    HEED_ASSIGN(case_.v, file_.Doubles("v"));
    HEED_ASSIGN(const TensorEntry* proj, FindProjection());
    if (proj == nullptr) return {};
    HEED_TRY(CheckRank(*proj, 2, "[C, n_head*head_dim]"));
    return ReadProjection(*proj, proj->shape[0], false);
  }

  // x through q_proj, k_proj and v_proj; `q` is null when the file has no such weight.
  Status ReadSplit(const TensorEntry* q) {
    HEED_ASSIGN(const int64_t C, ReadInput());
    if (q == nullptr) return Require("q_proj.weight", "[n_head*head_dim, C]").map([](auto) {});
    prefix_ = q->name.substr(0, q->name.size() - std::string_view("q_proj.weight").size());
    HEED_ASSIGN(const TensorEntry* k, RequireWeight("k_proj.weight"));
    HEED_ASSIGN(const TensorEntry* v, RequireWeight("v_proj.weight"));
    HEED_ASSIGN(const TensorEntry* proj, FindProjection());
    const bool needed = layouts_ == WeightLayouts::kLinear;
    if (proj == nullptr && needed)
      return Require("o_proj.weight", "[C, n_head*head_dim]").map([](auto) {});
    HEED_TRY(CheckRank(*q, 2, "[n_head*head_dim, C]"));
    HEED_TRY(CheckRank(*k, 2, "[n_kv_head*head_dim, C]"));
    const bool transposed =
        layouts_ == WeightLayouts::kByShape && (IsConv1d(*q, C) || IsConv1d(*k, C));
    const int64_t q_rows = q->shape[transposed], kv_rows = k->shape[transposed];
    HEED_TRY(ResolveHeads(*q, q_rows, *k, kv_rows));
    HEED_TRY(CheckWeight(*q, q_rows, C, transposed, "[n_head*head_dim, C]"));
    HEED_TRY(CheckWeight(*k, kv_rows, C, transposed, "[n_kv_head*head_dim, C]"));
    HEED_TRY(CheckWeight(*v, kv_rows, C, transposed, "[n_kv_head*head_dim, C]"));
    case_.qkv = {.out = q_rows + 2 * kv_rows, .in = C};
    std::vector<int64_t> rows(q_rows), k_rows(kv_rows), v_rows(kv_rows);
    std::iota(rows.begin(), rows.end(), 0);
    std::iota(k_rows.begin(), k_rows.end(), q_rows);
    std::iota(v_rows.begin(), v_rows.end(), q_rows + kv_rows);
    HEED_TRY(AddPart(*q, transposed, std::move(rows), &case_.qkv));
    HEED_TRY(AddPart(*k, transposed, std::move(k_rows), &case_.qkv));
    HEED_TRY(AddPart(*v, transposed, std::move(v_rows), &case_.qkv));
    return proj == nullptr ? Status() : ReadProjection(*proj, C, transposed);
  }

  // Whether a weight that is not square can only be [in, out].
  static bool IsConv1d(const TensorEntry& weight, int64_t C) {
    return weight.shape[0] == C && weight.shape[1] != C;
  }

  Status CheckWeight(const TensorEntry& weight, int64_t rows, int64_t C, bool transposed,
                     const char* axes) const {
    if (!transposed) return CheckShape(weight, {rows, C}, axes, kLinearHint);
    return CheckShape(weight, {C, rows}, "[in, out]", "other weights here are laid out so");
  }

  // x through c_attn.
  Status ReadFused(const TensorEntry& fused) {
    HEED_ASSIGN(const int64_t C, ReadInput());
    const std::string_view word =
        fused.name.ends_with("_weight") ? "in_proj_weight" : "c_attn.weight";
    prefix_ = fused.name.substr(0, fused.name.size() - word.size());
    HEED_ASSIGN(const TensorEntry* proj, FindProjection());
    if (proj == nullptr) return Require("c_proj.weight", "[n_head*head_dim, C]").map([](auto) {});
    const char* axes = "[C, (n_head + 2*n_kv_head)*head_dim]";
    HEED_TRY(CheckRank(fused, 2, axes));
    HEED_TRY(CheckRank(*proj, 2, "[n_head*head_dim, C]"));
    const bool conv1d_proj = EndsInWord(proj->name, "c_proj.weight");
    const bool square = fused.shape[0] == fused.shape[1];
    // A square c_attn leaves less than C columns to c_proj, whose shape then tells the layout.
    const bool transposed =
        fused.shape[0] == C && (!square || (conv1d_proj && proj->shape[1] == C));
    const int64_t in = fused.shape[transposed ? 0 : 1], rows = fused.shape[transposed ? 1 : 0];
    if (in != C) {
      return Fail(ErrorKind::kFormat, Where(fused), ShapeText(fused.shape),
                  fmt::format("{} with C = {}, or its transpose", axes, C));
    }
    const int64_t q_rows = proj->shape[transposed && conv1d_proj ? 0 : 1];
    if (rows <= q_rows || (rows - q_rows) % 2 != 0) {
      return Fail(ErrorKind::kFormat, Where(fused), ShapeText(fused.shape), axes,
                  fmt::format("{} leaves {} columns to the queries", Quoted(proj->name), q_rows));
    }
    HEED_TRY(ResolveHeads(fused, q_rows, fused, (rows - q_rows) / 2));
    case_.qkv = {.out = rows, .in = C};
    HEED_TRY(AddPart(fused, transposed, FusedRows(case_.settings), &case_.qkv));
    return ReadProjection(*proj, C, transposed && conv1d_proj);
  }

  // x [B, T, C], or [T, C] of a single sequence; returns C.
  Result<int64_t> ReadInput() {
    HEED_ASSIGN(const TensorEntry* x, Require("x", "[B, T, C], or q, k and v"));
    const bool single = layouts_ == WeightLayouts::kByShape && x->shape.size() == 2;
    HEED_TRY(CheckRank(*x, single ? 2 : 3, single ? "[T, C]" : "[B, T, C]"));
    case_.B = single ? 1 : x->shape[0];
    case_.T = x->shape[single ? 0 : 1];
    case_.dtype = x->dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    HEED_ASSIGN(case_.x, file_.Doubles("x"));
    return x->shape.back();
  }

  // The output projection of merged [B, T, H·D] to width C.
  Status ReadProjection(const TensorEntry& weight, int64_t C, bool transposed) {
    const int64_t width = case_.settings.n_head * case_.settings.head_dim;
    if (transposed) {
      HEED_TRY(CheckShape(weight, {width, C}, "[n_head*head_dim, C]", "c_attn is laid out so"));
    } else {
      HEED_TRY(CheckShape(weight, {C, width}, "[C, n_head*head_dim]", kLinearHint));
    }
    case_.proj = {.out = C, .in = width};
    std::vector<int64_t> rows(C);
    std::iota(rows.begin(), rows.end(), 0);
    return AddPart(weight, transposed, std::move(rows), &case_.proj);
  }

  Status ReadPast() {
    const TensorEntry* k = file_.Find("past_k");
    const TensorEntry* v = file_.Find("past_v");
    if (k == nullptr && v == nullptr) return CheckScores();
    if (k == nullptr) return Require("past_k", "[B, n_kv_head, P, head_dim]").map([](auto) {});
    if (v == nullptr) return Require("past_v", "[B, n_kv_head, P, head_dim]").map([](auto) {});
    const char* axes = "[B, n_kv_head, P, head_dim]";
    // A cache that is still empty has P = 0.
    if (k->shape.size() != 4) return ShapeError(*k, axes);
    case_.P = k->shape[2];
    const AttentionSettings& settings = case_.settings;
    const std::vector<int64_t> shape = {case_.B, settings.n_kv_head, case_.P, settings.head_dim};
    HEED_TRY(CheckShape(*k, shape, axes));
    HEED_TRY(CheckShape(*v, shape, axes));
    HEED_TRY(CheckScores());
    HEED_ASSIGN(case_.past_k, file_.Doubles("past_k"));
    HEED_ASSIGN(case_.past_v, file_.Doubles("past_v"));
    return {};
  }

  Status ReadOutputGradient() {
    const TensorEntry* dy = file_.Find("dy");
    if (dy == nullptr) return {};
    const bool projected = !case_.proj.parts.empty();
    const int64_t width =
        projected ? case_.proj.out : case_.settings.n_head * case_.settings.head_dim;
    HEED_TRY(CheckShape(*dy, {case_.B, case_.T, width},
                        projected ? "[B, T, C]" : "[B, T, n_head*head_dim]"));
    HEED_ASSIGN(case_.dy, file_.Doubles("dy"));
    return {};
  }

  // Sets n_head, n_kv_head and head_dim from the rows of the queries and of the keys.
  Status ResolveHeads(const TensorEntry& q, int64_t q_rows, const TensorEntry& k, int64_t kv_rows) {
    AttentionSettings& settings = case_.settings;
    const TensorEntry* past = file_.Find("past_k");
    if (settings.head_dim == 0 && settings.n_head > 0) {
      HEED_TRY(Divide("n_head", settings.n_head, q, q_rows, &settings.head_dim));
    } else if (settings.head_dim == 0 && settings.n_kv_head > 0) {
      HEED_TRY(Divide("n_kv_head", settings.n_kv_head, k, kv_rows, &settings.head_dim));
    } else if (settings.head_dim == 0 && past != nullptr && past->shape.size() == 4) {
      settings.head_dim = past->shape[3];
    }
    if (settings.head_dim == 0) {
      return BadRequest(where_ + ": n_head", "none stated", "the number of query heads",
                        "give --n-head");
    }
    int64_t n_head = 0, n_kv_head = 0;
    HEED_TRY(Divide("head_dim", settings.head_dim, q, q_rows, &n_head));
    HEED_TRY(Divide("head_dim", settings.head_dim, k, kv_rows, &n_kv_head));
    HEED_TRY(Settle("n_head", n_head, q, &settings.n_head));
    HEED_TRY(Settle("n_kv_head", n_kv_head, k, &settings.n_kv_head));
    return CheckSizes();
  }

  Status Divide(const char* name, int64_t divisor, const TensorEntry& entry, int64_t rows,
                int64_t* quotient) const {
    if (rows % divisor != 0) {
      return BadRequest(where_ + ": " + name, fmt::format("{}", divisor),
                        fmt::format("a divisor of {}, the rows of its heads in {} {}", rows,
                                    Quoted(entry.name), ShapeText(entry.shape)));
    }
    *quotient = rows / divisor;
    return {};
  }

  // Sets a size from a shape, or compares it with what was stated.
  Status Settle(const char* name, int64_t size, const TensorEntry& entry, int64_t* stated) const {
    if (*stated != 0 && *stated != size) {
      return BadRequest(
          where_ + ": " + name, fmt::format("{}", *stated),
          fmt::format("{}, as {} {} has it", size, Quoted(entry.name), ShapeText(entry.shape)));
    }
    *stated = size;
    return {};
  }

  // The rules between the sizes that are now all known.
  Status CheckSizes() {
    AttentionSettings& settings = case_.settings;
    if (settings.n_head % settings.n_kv_head != 0) {
      return BadRequest(where_ + ": n_kv_head", fmt::format("{}", settings.n_kv_head),
                        fmt::format("a divisor of n_head = {}", settings.n_head));
    }
    if (settings.position != Position::kRope) return {};
    if (settings.rotary_dim == 0) settings.rotary_dim = settings.head_dim;
    if (settings.rotary_dim % 2 != 0 || settings.rotary_dim > settings.head_dim) {
      return BadRequest(where_ + ": rotary_dim", fmt::format("{}", settings.rotary_dim),
                        fmt::format("an even number up to head_dim = {}", settings.head_dim));
    }
    return {};
  }

  Status CheckScores() const {
    const std::array<int64_t, 4> shape = {case_.B, case_.settings.n_head, case_.T, case_.S()};
    const std::optional<int64_t> scores = ElementCount(shape);
    if (scores && *scores <= kMostScores) return {};
    return Fail(ErrorKind::kFormat, where_, "scores [B, H, T, S] = " + ShapeText(shape),
                fmt::format("at most {} of them", kMostScores),
                "cut the batch or the positions, which the map grows with");
  }

  // Adds one stored weight, and its bias when there is one.
  Status AddPart(const TensorEntry& entry, bool transposed, std::vector<int64_t> rows,
                 SavedLinear* linear) const {
    const auto out = static_cast<int64_t>(rows.size());
    const int64_t in = linear->in;
    linear->weight.resize(linear->out * in);
    linear->bias.resize(linear->out);
    HEED_ASSIGN(const std::vector<double> weight, file_.Doubles(entry.name));
    for (int64_t j = 0; j < out; ++j) {
      for (int64_t c = 0; c < in; ++c) {
        linear->weight[rows[j] * in + c] = weight[transposed ? c * out + j : j * in + c];
      }
    }
    std::string name = entry.name;
    name.replace(name.size() - std::string_view("weight").size(), std::string::npos, "bias");
    const TensorEntry* stored = file_.Find(name);
    if (stored == nullptr) {
      name.clear();
    } else {
      HEED_TRY(CheckShape(*stored, {out}, "one number for each output"));
      HEED_ASSIGN(const std::vector<double> bias, file_.Doubles(name));
      for (int64_t j = 0; j < out; ++j) linear->bias[rows[j]] = bias[j];
    }
    linear->parts.push_back({entry.name, std::move(name), transposed, std::move(rows)});
    return {};
  }

  // The rows of q, k and v in the order in which a fused weight has them.
  static std::vector<int64_t> FusedRows(const AttentionSettings& settings) {
    const int64_t H = settings.n_head, Hkv = settings.n_kv_head, D = settings.head_dim;
    std::vector<int64_t> heads;  // in units of heads: q from 0, k from H, v from H + Hkv
    for (int64_t h = 0; h < Hkv; ++h) {
      for (int64_t i = 0; i < H / Hkv; ++i) heads.push_back(h * (H / Hkv) + i);
      heads.push_back(H + h);
      heads.push_back(H + Hkv + h);
    }
    if (settings.qkv_layout == QkvLayout::kBlocks) std::ranges::sort(heads);
    std::vector<int64_t> rows;
    for (const int64_t head : heads) {
      for (int64_t d = 0; d < D; ++d) rows.push_back(head * D + d);
    }
    return rows;
  }

  // The output projection's weight, or null.
  Result<const TensorEntry*> FindProjection() const {
    for (const char* word : {"o_proj.weight", "out_proj.weight", "c_proj.weight"}) {
      HEED_ASSIGN(const TensorEntry* found, FindWeight(word));
      if (found != nullptr) return found;
    }
    return nullptr;
  }

  Result<const TensorEntry*> RequireWeight(const std::string& word) const {
    HEED_ASSIGN(const TensorEntry* found, FindWeight(word));
    if (found != nullptr) return found;
    return Require(prefix_ + word, "[n_kv_head*head_dim, C]");
  }

  // With the queries' prefix or else any.
  Result<const TensorEntry*> FindWeight(const std::string& word) const {
    return heed::FindWeight(file_, where_, prefix_, word);
  }

  // Suggests only names that mean nothing here: a missing k_proj is no mistyped q_proj.
  Result<const TensorEntry*> Require(const std::string& name, const char* axes) const {
    if (const TensorEntry* entry = file_.Find(name)) return entry;
    std::vector<TensorEntry> unknown = file_.tensors();
    std::erase_if(unknown, [](const TensorEntry& entry) {
      return std::ranges::any_of(kKnownWords,
                                 [&](const char* word) { return EndsInWord(entry.name, word); });
    });
    return RequireEntry(unknown, name, where_, axes);
  }

  std::string Where(const TensorEntry& entry) const {
    return where_ + ": tensor " + Quoted(entry.name);
  }

  tl::unexpected<Error> ShapeError(const TensorEntry& entry, const std::string& expected,
                                   const char* hint = "") const {
    return Fail(ErrorKind::kFormat, Where(entry), ShapeText(entry.shape), expected, hint);
  }

  // Of `rank` axes, none of them empty.
  Status CheckRank(const TensorEntry& entry, size_t rank, const char* axes) const {
    if (entry.shape.size() == rank && std::ranges::min(entry.shape) > 0) return {};
    return ShapeError(entry, std::string(axes) + ", every size at least 1");
  }

  Status CheckShape(const TensorEntry& entry, const std::vector<int64_t>& shape, const char* axes,
                    const char* hint = "") const {
    if (entry.shape == shape) return {};
    return ShapeError(entry, std::string(axes) + " = " + ShapeText(shape), hint);
  }

  const TensorFile& file_;
  const std::string& where_;
  const WeightLayouts layouts_;
  std::string prefix_;  // of the queries' weight
  AttentionCase case_;
};

}  // namespace

Result<AttentionCase> ReadAttentionCase(const TensorFile& file, const std::string& where,
                                        const SettingTexts& given, WeightLayouts layouts) {
  HEED_ASSIGN(AttentionSettings settings, ParseAttentionSettings(file.settings(), given, where));
  return CaseReader(file, where, std::move(settings), layouts).Read();
}

Result<const TensorEntry*> FindWeight(const TensorFile& file, const std::string& where,
                                      const std::string& prefix, const std::string& word) {
  for (const std::string& name : {prefix + word, word}) {
    if (const TensorEntry* entry = file.Find(name)) return entry;
  }
  const TensorEntry* found = nullptr;
  for (const TensorEntry& entry : file.tensors()) {
    if (!EndsInWord(entry.name, word) || IsResult(entry.name)) continue;
    if (found != nullptr) {
      return Fail(ErrorKind::kFormat, where, Quoted(found->name) + " and " + Quoted(entry.name),
                  "one tensor whose name ends in " + word, "save one layer alone");
    }
    found = &entry;
  }
  return found;
}

Status WriteTrace(const std::string& path, const AttentionCase& attention,
                  const std::vector<TracedTensor>& traced, bool overwrite) {
  std::vector<TensorToWrite> tensors;
  for (const TracedTensor& tensor : traced) {
    tensors.push_back({tensor.name, attention.dtype, tensor.shape, nullptr,
                       [&](int64_t first, std::span<std::byte> out) {
                         Encode(attention.dtype, tensor.values.data() + first,
                                out.size() / SizeOf(attention.dtype), out.data());
                       }});
  }
  return WriteSafetensors(path, tensors, TextsOf(attention.settings), overwrite);
}

}  // namespace heed
