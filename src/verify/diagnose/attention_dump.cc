#include "verify/diagnose/attention_dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "base/fields_text.h"
#include "base/quote.h"
#include "tensor/shape.h"
#include "verify/diagnose/noise.h"
#include "verify/diagnose/search.h"

namespace heed {
namespace {

// Below any score: float32's lowest, -1e9, -1e20.
constexpr double kAsGoodAsHidden = -1e8;

std::vector<std::string> InputNames(const AttentionCase& attention) {
  std::vector<std::string> names = {"past_k", "past_v"};
  if (attention.qkv.parts.empty()) {
    names.insert(names.end(), {"q", "k", "v"});
  } else {
    names.emplace_back("x");
  }
  for (const SavedLinear* linear : {&attention.qkv, &attention.proj}) {
    for (const WeightPart& part : linear->parts) {
      names.push_back(part.weight);
      names.push_back(part.bias);
    }
  }
  return names;
}

// Every input is finite; their types.
Result<std::vector<DType>> CheckInputs(const TensorFile& file, const std::string& where,
                                       const AttentionCase& attention) {
  std::vector<DType> types;
  for (const std::string& name : InputNames(attention)) {
    const TensorEntry* entry = file.Find(name);
    if (entry == nullptr) continue;
    types.push_back(entry->dtype);
    HEED_ASSIGN(const std::vector<double> values, file.Doubles(name));
    const auto bad = std::ranges::find_if(values, [](double x) { return !std::isfinite(x); });
    if (bad == values.end()) continue;
    return Fail(
        ErrorKind::kFormat, where + ": tensor " + Quoted(name),
        fmt::format("{} at {}", *bad, ShapeText(IndexOf(bad - values.begin(), entry->shape))),
        "finite numbers", "an input that is not finite explains nothing");
  }
  return types;
}

class ResultReader {
 public:
  ResultReader(const TensorFile& file, const std::string& where, const AttentionCase& attention)
      : file_(file), where_(where), case_(attention) {}

  Result<std::vector<TheirTensor>> Read() {
    const AttentionCase& a = case_;
    const bool weights = !a.qkv.parts.empty(), projected = !a.proj.parts.empty();
    const int64_t H = a.settings.n_head, Hkv = a.settings.n_kv_head, D = a.settings.head_dim;
    const std::vector<int64_t> q = {a.B, H, a.T, D}, k = {a.B, Hkv, a.T, D};
    const std::vector<int64_t> map = {a.B, H, a.T, a.S()}, merged = {a.B, a.T, H * D};
    if (weights) {
      HEED_TRY(Take(Stage::kQ, "[B, n_head, T, head_dim]", q));
      HEED_TRY(Take(Stage::kK, "[B, n_kv_head, T, head_dim]", k));
      HEED_TRY(Take(Stage::kV, "[B, n_kv_head, T, head_dim]", k));
    }
    HEED_TRY(Take(Stage::kQRot, "[B, n_head, T, head_dim]", q));
    HEED_TRY(Take(Stage::kKRot, "[B, n_kv_head, T, head_dim]", k));
    HEED_TRY(Take(Stage::kScores, "[B, n_head, T, S]", map));
    HEED_TRY(Take(Stage::kPattern, "[B, n_head, T, S]", map));
    HEED_TRY(Take(Stage::kZ, "[B, n_head, T, head_dim]", q));
    HEED_TRY(Take(Stage::kMerged, "[B, T, n_head*head_dim]", merged));
    if (projected) {
      HEED_TRY(Take(Stage::kY, "[B, T, C]", {a.B, a.T, a.proj.out}));
    } else if (const TensorEntry* y = file_.Find("y")) {
      HEED_TRY(y->shape == q ? TakeAs("y", Stage::kZ, "", q)
                             : TakeAs("y", Stage::kMerged, "[B, T, n_head*head_dim]", merged));
    }
    if (theirs_.empty()) {
      const std::vector<std::string> inputs = InputNames(a);
      std::vector<TensorEntry> others = file_.tensors();
      std::erase_if(others, [&](const TensorEntry& entry) {
        return std::ranges::count(inputs, entry.name) > 0;
      });
      const std::vector<int64_t> shape = {a.B, a.T, projected ? a.proj.out : H * D};
      HEED_TRY(RequireEntry(others, "y", where_, "the layer's answer, " + ShapeText(shape))
                   .map([](auto) {}));
    }
    return std::move(theirs_);
  }

  Result<TheirTensor> ReadAs(const std::string& name, const TheirTensor& like) {
    HEED_TRY(RequireEntry(file_.tensors(), name, where_).map([](auto) {}));
    HEED_TRY(TakeAs(name, like.stage, like.name.c_str(), like.shape));
    return std::move(theirs_.back());
  }

 private:
  Status Take(Stage stage, const char* axes, const std::vector<int64_t>& shape) {
    const std::string name(NameOf(stage));
    return file_.Find(name) == nullptr ? Status() : TakeAs(name, stage, axes, shape);
  }

  Status TakeAs(const std::string& name, Stage stage, const char* axes,
                const std::vector<int64_t>& shape) {
    const TensorEntry& entry = *file_.Find(name);
    // A single sequence may have no axis for the batch.
    const bool single =
        shape[0] == 1 && std::ranges::equal(entry.shape, std::span(shape).subspan(1));
    if (entry.shape != shape && !single) {
      return Fail(ErrorKind::kFormat, where_ + ": tensor " + Quoted(name), ShapeText(entry.shape),
                  fmt::format("{} = {}", axes, ShapeText(shape)), "as the inputs and settings say");
    }
    TheirTensor tensor{.name = name, .stage = stage, .shape = shape, .stored = entry.dtype};
    HEED_ASSIGN(tensor.values, file_.Doubles(name));
    tensor.dtype = EffectiveDType(entry.dtype, tensor.values);
    if (stage == Stage::kScores) {
      for (double& score : tensor.values) {
        if (score < kAsGoodAsHidden) score = -std::numeric_limits<double>::infinity();
      }
    }
    theirs_.push_back(std::move(tensor));
    return {};
  }

  const TensorFile& file_;
  const std::string& where_;
  const AttentionCase& case_;
  std::vector<TheirTensor> theirs_;
};

}  // namespace

Result<std::vector<TheirTensor>> ReadAttentionResults(const TensorFile& file,
                                                      const std::string& where,
                                                      const AttentionCase& attention) {
  return ResultReader(file, where, attention).Read();
}

Result<TheirTensor> ReadAttentionResult(const TensorFile& file, const std::string& where,
                                        const std::string& name, const AttentionDump& dump) {
  HEED_ASSIGN(TheirTensor result,
              ResultReader(file, where, dump.attention).ReadAs(name, dump.theirs.back()));
  BlankPadding(dump.attention, dump.context, result.stage, &result.values);
  return result;
}

Result<AttentionDump> ReadAttentionDump(const TensorFile& file, const std::string& where,
                                        const SettingTexts& given) {
  AttentionDump dump;
  HEED_ASSIGN(dump.attention, ReadAttentionCase(file, where, given, WeightLayouts::kByShape));
  for (const SettingTexts* texts : {&file.settings(), &given}) {
    for (const auto& [name, text] : *texts) {
      if (text != "null" && text != "None") dump.stated.insert(name);
    }
  }
  const auto dropout =
      given.contains("dropout") ? given.find("dropout") : file.settings().find("dropout");
  const bool dropped = dump.stated.contains("dropout");
  if (dropped) HEED_TRY(ParseField(where + ": dropout", dropout->second, &dump.dropout));
  if (!(dump.dropout >= 0 && dump.dropout < 1)) {
    return BadRequest(where + ": dropout", dropout->second, "at least 0 and below 1");
  }
  // A rotation that was not stated may be tried, of the whole head.
  AttentionSettings& settings = dump.attention.settings;
  if (settings.rotary_dim == 0) settings.rotary_dim = settings.head_dim / 2 * 2;
  HEED_ASSIGN(dump.context, ReadAttentionContext(file, where, given, dump.attention));
  HEED_ASSIGN(std::vector<DType> types, CheckInputs(file, where, dump.attention));
  HEED_ASSIGN(dump.theirs, ReadAttentionResults(file, where, dump.attention));
  for (TheirTensor& tensor : dump.theirs) {
    BlankPadding(dump.attention, dump.context, tensor.stage, &tensor.values);
    types.push_back(tensor.stored);
  }
  dump.output = dump.theirs.back().dtype;
  types.push_back(dump.output);
  dump.coarsest = CoarsestOf(types);
  return dump;
}

}  // namespace heed
