#include "verify/diagnose/attention_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/quote.h"
#include "inspect/attention_file.h"
#include "tensor/shape.h"
#include "verify/diagnose/dump.h"

namespace heed {
namespace {

class ContextReader {
 public:
  ContextReader(const TensorFile& file, const std::string& where, const SettingTexts& given,
                const AttentionCase& attention)
      : dump_(file, where, given), texts_(given), case_(attention) {
    texts_.insert(file.settings().begin(), file.settings().end());
  }

  Result<AttentionContext> Read() {
    const int64_t B = case_.B, T = case_.T, S = case_.S(), far = int64_t{1} << 31;
    HEED_ASSIGN(context_, ParseContextSettings(texts_, dump_.where(), case_.settings));
    HEED_TRY(Take("attention_mask", "[B, S]", S, 0, 1, &context_.attention_mask));
    HEED_TRY(Take("document_ids", "[B, T]", T, -far, far, &context_.document_ids));
    HEED_TRY(Take("position_ids", "[B, T]", T, -far, far, &context_.position_ids));
    if (dump_.Has("document_ids") && case_.P > 0) {
      return Fail(ErrorKind::kFormat, Where("document_ids"), fmt::format("P = {} cached", case_.P),
                  "no past_k beside it", "save the packed rows whole");
    }
    if (std::ranges::count(context_.attention_mask, 0) == 0) context_.attention_mask.clear();
    std::vector<int64_t>& documents = context_.document_ids;
    bool one = true;
    for (int64_t at = 1; at < B * T && !documents.empty(); ++at) {
      one = one && (at % T == 0 || documents[at] == documents[at - 1]);
    }
    if (one) documents.clear();
    const AttentionSettings& settings = case_.settings;
    HEED_TRY(TakeGain("q", settings.n_head, &context_.q_norm));
    HEED_TRY(TakeGain("k", settings.n_kv_head, &context_.k_norm));
    HEED_TRY(CheckPair(".weight", context_.q_norm.values, context_.k_norm.values));
    HEED_TRY(CheckPair(".bias", context_.q_norm.bias, context_.k_norm.bias));
    if (context_.HasNormBias()) {
      if (context_.qk_layernorm == false) {
        return BadRequest(dump_.where() + ": qk_layernorm",
                          "false beside " + Quoted(context_.q_norm.name + ".bias"),
                          "true, for an RMS norm has no bias");
      }
      context_.qk_layernorm = true;
    }
    return std::move(context_);
  }

 private:
  // Both norms have it, or neither.
  Status CheckPair(const std::string& part, const std::vector<double>& q,
                   const std::vector<double>& k) const {
    if (q.empty() == k.empty()) return {};
    const std::string& found = (q.empty() ? context_.k_norm : context_.q_norm).name;
    return Fail(ErrorKind::kFormat, dump_.where(),
                "no tensor " + Quoted((q.empty() ? "q_norm" : "k_norm") + part),
                "those of both norms, as " + Quoted(found + part));
  }

  std::string Where(const std::string& name) const {
    return dump_.where() + ": tensor " + Quoted(name);
  }

  // Integers [B, n], or one row for all, in [least, most].
  Status Take(const char* name, const char* axes, int64_t n, int64_t least, int64_t most,
              std::vector<int64_t>* to) {
    const TensorEntry* entry = dump_.file().Find(name);
    if (entry == nullptr) return {};
    const std::vector<int64_t>& shape = entry->shape;
    const bool single =
        shape == std::vector<int64_t>{n} || shape == std::vector<int64_t>{int64_t{1}, n};
    if (!single && shape != std::vector<int64_t>{case_.B, n}) {
      return dump_.ShapeError(name,
                              fmt::format("{} = {}", axes, ShapeText(std::array{case_.B, n})));
    }
    HEED_ASSIGN(*to, dump_.Integers(name, least, most));
    while (static_cast<int64_t>(to->size()) < case_.B * n) to->push_back((*to)[to->size() - n]);
    return {};
  }

  Status TakeGain(const std::string& letter, int64_t heads, HeadGain* gain) {
    const TensorEntry* entry = nullptr;
    for (const char* word : {"_norm.weight", "_layernorm.weight"}) {
      if (entry != nullptr) break;
      HEED_ASSIGN(entry, FindWeight(dump_.file(), dump_.where(), "", letter + word));
    }
    if (entry == nullptr) return {};
    const int64_t D = case_.settings.head_dim;
    gain->name = entry->name.substr(0, entry->name.size() - std::string(".weight").size());
    gain->all_heads = heads > 1 && entry->shape == std::vector<int64_t>{heads * D};
    HEED_ASSIGN(gain->values, TakeOfHeads(*entry, heads));
    const TensorEntry* bias = dump_.file().Find(gain->name + ".bias");
    if (bias == nullptr) return {};
    if (bias->shape != entry->shape) {
      return dump_.ShapeError(bias->name, "that of " + Quoted(entry->name));
    }
    HEED_ASSIGN(gain->bias, TakeOfHeads(*bias, heads));
    return {};
  }

  // [heads·D], of [D], [heads, D] or [heads·D].
  Result<std::vector<double>> TakeOfHeads(const TensorEntry& entry, int64_t heads) {
    const int64_t D = case_.settings.head_dim;
    const std::vector<int64_t>& shape = entry.shape;
    if (shape != std::vector<int64_t>{D} && shape != std::vector<int64_t>{heads, D} &&
        shape != std::vector<int64_t>{heads * D}) {
      return dump_.ShapeError(
          entry.name, fmt::format("[head_dim] = [{}], or [heads*head_dim] = [{}]", D, heads * D),
          "n_head, n_kv_head and head_dim say so");
    }
    HEED_ASSIGN(Observed read, dump_.Floats(entry.name));
    while (static_cast<int64_t>(read.values.size()) < heads * D) {
      read.values.push_back(read.values[read.values.size() - D]);
    }
    return std::move(read.values);
  }

  Dump dump_;
  SettingTexts texts_;
  const AttentionCase& case_;
  AttentionContext context_;
};

}  // namespace

Result<AttentionContext> ParseContextSettings(const SettingTexts& texts, const std::string& where,
                                              const AttentionSettings& settings) {
  AttentionContext context;
  const auto text = [&](const char* name) -> const std::string* {
    const auto found = texts.find(name);
    const bool stated = found != texts.end() && found->second != "null" && found->second != "None";
    return stated ? &found->second : nullptr;
  };
  if (const std::string* alibi = text("alibi")) {
    HEED_TRY(ParseField(where + ": alibi", *alibi, &context.alibi));
  }
  if (context.alibi && settings.position == Position::kRope) {
    return BadRequest(where + ": alibi", "true with position rope", "one of them");
  }
  if (const std::string* place = text("qk_norm")) {
    const std::pair<const char*, NormPlace> kPlaces[] = {
        {"none", NormPlace::kNone},
        {"before_rope", NormPlace::kBeforeRotation},
        {"after_rope", NormPlace::kAfterRotation}};
    for (const auto& [name, value] : kPlaces) {
      if (*place == name) context.qk_norm = value;
    }
    if (!context.qk_norm) {
      return BadRequest(where + ": qk_norm", "'" + *place + "'", "none, before_rope or after_rope");
    }
  }
  if (const std::string* layer = text("qk_layernorm")) {
    HEED_TRY(ParseField(where + ": qk_layernorm", *layer, &context.qk_layernorm.emplace()));
  }
  if (const std::string* empty = text("rows_without_keys")) {
    const std::pair<const char*, EmptyRow> kRows[] = {
        {"zero", EmptyRow::kZero}, {"mean", EmptyRow::kUniform}, {"unmasked", EmptyRow::kUnmasked}};
    for (const auto& [name, value] : kRows) {
      if (*empty == name) context.rows_without_keys = value;
    }
    if (!context.rows_without_keys) {
      return BadRequest(where + ": rows_without_keys", "'" + *empty + "'",
                        "zero, mean or unmasked");
    }
  }
  if (const std::string* eps = text("norm_eps")) {
    HEED_TRY(ParseField(where + ": norm_eps", *eps, &context.norm_eps.emplace()));
    if (!(*context.norm_eps >= 0)) return BadRequest(where + ": norm_eps", *eps, "a number from 0");
  }
  return context;
}

Result<AttentionContext> ReadAttentionContext(const TensorFile& file, const std::string& where,
                                              const SettingTexts& given,
                                              const AttentionCase& attention) {
  return ContextReader(file, where, given, attention).Read();
}

bool AttentionContext::PaddedLeft(const AttentionCase& attention) const {
  for (int64_t b = 0; b < attention.B && Padded(); ++b) {
    if (attention.P == 0 && attention_mask[b * attention.S()] == 0) return true;
  }
  return false;
}

std::vector<double> AlibiSlopes(int64_t heads, double shift) {
  const auto series = [shift](int64_t n, int64_t step, int64_t count, std::vector<double>* slopes) {
    for (int64_t i = 0; i < count; ++i) {
      const double h = static_cast<double>(1 + i * step) + shift;
      slopes->push_back(std::pow(2, -8 * h / static_cast<double>(n)));
    }
  };
  const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  std::vector<double> slopes;
  series(below, 1, below, &slopes);
  series(2 * below, 2, heads - below, &slopes);
  return slopes;
}

std::vector<double> AlibiSlopesOddsFirst(int64_t heads) {
  const auto n = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(heads)));
  std::vector<double> slopes = AlibiSlopes(n, 0), moved;
  if (n == heads) return slopes;
  for (const int64_t first : {1, 0}) {
    for (int64_t h = first; h < n; h += 2) moved.push_back(slopes[h]);
  }
  moved.resize(heads);
  return moved;
}

}  // namespace heed
