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
      : dump_(file, where, given), case_(attention) {}

  Result<AttentionContext> Read() {
    const int64_t B = case_.B, T = case_.T, S = case_.S(), far = int64_t{1} << 31;
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
    HEED_TRY(TakeGain("q_norm", settings.n_head, &context_.q_norm));
    HEED_TRY(TakeGain("k_norm", settings.n_kv_head, &context_.k_norm));
    if (context_.q_norm.values.empty() != context_.k_norm.values.empty()) {
      const bool q = context_.q_norm.values.empty();
      return Fail(
          ErrorKind::kFormat, dump_.where(),
          "no tensor " + Quoted(q ? "q_norm.weight" : "k_norm.weight"),
          "the gains of both norms, as " + Quoted((q ? context_.k_norm : context_.q_norm).name));
    }
    HEED_TRY(TakeSettings());
    if (context_.alibi && settings.position == Position::kRope) {
      return BadRequest(dump_.where() + ": alibi", "true with position rope", "one of them");
    }
    return std::move(context_);
  }

 private:
  Status TakeSettings() {
    HEED_ASSIGN(const auto alibi, dump_.Setting<bool>("alibi"));
    context_.alibi = alibi.value_or(false);
    HEED_ASSIGN(const auto place, dump_.Setting<std::string>("qk_norm"));
    if (place) {
      const std::pair<const char*, NormPlace> kPlaces[] = {
          {"none", NormPlace::kNone},
          {"before_rope", NormPlace::kBeforeRotation},
          {"after_rope", NormPlace::kAfterRotation}};
      for (const auto& [name, value] : kPlaces) {
        if (*place == name) context_.qk_norm = value;
      }
      if (!context_.qk_norm) {
        return BadRequest(dump_.where() + ": qk_norm", "'" + *place + "'",
                          "none, before_rope or after_rope");
      }
    }
    HEED_ASSIGN(const auto empty, dump_.Setting<std::string>("rows_without_keys"));
    if (empty) {
      const std::pair<const char*, EmptyRow> kRows[] = {{"zero", EmptyRow::kZero},
                                                        {"mean", EmptyRow::kUniform},
                                                        {"unmasked", EmptyRow::kUnmasked}};
      for (const auto& [name, value] : kRows) {
        if (*empty == name) context_.rows_without_keys = value;
      }
      if (!context_.rows_without_keys) {
        return BadRequest(dump_.where() + ": rows_without_keys", "'" + *empty + "'",
                          "zero, mean or unmasked");
      }
    }
    HEED_ASSIGN(context_.norm_eps, dump_.Setting<double>("norm_eps"));
    if (context_.norm_eps && !(*context_.norm_eps >= 0)) {
      return BadRequest(dump_.where() + ": norm_eps", fmt::format("{}", *context_.norm_eps),
                        "a number from 0");
    }
    return {};
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

  Status TakeGain(const std::string& word, int64_t heads, HeadGain* gain) {
    HEED_ASSIGN(const TensorEntry* entry,
                FindWeight(dump_.file(), dump_.where(), "", word + ".weight"));
    if (entry == nullptr) return {};
    const std::string bias = entry->name.substr(0, entry->name.size() - 6) + "bias";
    if (dump_.Has(bias)) {
      return Fail(ErrorKind::kFormat, Where(bias), "a bias", "an RMS norm, which has none",
                  "other norms of q and k are not replayed: hand over q and k behind them");
    }
    const int64_t D = case_.settings.head_dim;
    const std::vector<int64_t>& shape = entry->shape;
    gain->name = entry->name;
    gain->all_heads = heads > 1 && shape == std::vector<int64_t>{heads * D};
    if (!gain->all_heads && shape != std::vector<int64_t>{D} &&
        shape != std::vector<int64_t>{heads, D}) {
      return dump_.ShapeError(
          entry->name, fmt::format("[head_dim] = [{}], or [heads*head_dim] = [{}]", D, heads * D),
          "n_head, n_kv_head and head_dim say so");
    }
    HEED_ASSIGN(const Observed read, dump_.Floats(entry->name));
    gain->values = read.values;
    while (static_cast<int64_t>(gain->values.size()) < heads * D) {
      gain->values.push_back(gain->values[gain->values.size() - D]);
    }
    return {};
  }

  Dump dump_;
  const AttentionCase& case_;
  AttentionContext context_;
};

}  // namespace

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
