#include "verify/diagnose/attention_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "tensor/shape.h"
#include "verify/diagnose/attention_diagnosis.h"
#include "verify/diagnose/search.h"

namespace heed {
namespace {

constexpr const char* kUnused = "dropout_unused";
constexpr const char* kOffForGood = "dropout_off_for_good";

bool Names(const Explanation& explanation, const char* fault) {
  return std::ranges::count(explanation.faults, fault) > 0;
}
bool NamesAny(const Diagnosis& diagnosis, const char* fault) {
  return std::ranges::any_of(diagnosis.explanations,
                             [&](const Explanation& e) { return Names(e, fault); });
}

// What is said of that tensor in y's place; nothing when it is not there.
Result<std::optional<Diagnosis>> DiagnoseInPlaceOfY(const TensorFile& file,
                                                    const std::string& where, const char* name,
                                                    double dropout, AttentionDump dump) {
  if (file.Find(name) == nullptr) return std::nullopt;
  HEED_ASSIGN(TheirTensor result, ReadAttentionResult(file, where, name, dump));
  dump.output = result.dtype;
  dump.theirs = {std::move(result)};
  dump.dropout = dropout;
  return DiagnoseAttention(dump);
}

// Where another path is right, a fault that the whole program could have is one of this path.
void Rename(const char* fault, const char* of_one_path, Diagnosis* diagnosis) {
  for (Explanation& explanation : diagnosis->explanations) {
    std::ranges::replace(explanation.faults, fault, of_one_path);
    std::ranges::sort(explanation.faults);
  }
}

// A first call tells a dropout that was switched off from none at all, and a wrong table from one
// that was kept.
Status JudgeFirst(const TensorFile& file, const std::string& where, const AttentionDump& dump,
                  Diagnosis* diagnosis) {
  HEED_ASSIGN(auto first, DiagnoseInPlaceOfY(file, where, "y_first", dump.dropout, dump));
  if (first && first->verdict == DiagnosisVerdict::kCorrect) {
    Rename("position_restart", "rope_table_cache_key", diagnosis);
  }
  // Dropout may not be solved; without it there is one result.
  if (first && first->verdict == DiagnosisVerdict::kUnexplained && dump.dropout == 0 &&
      diagnosis->verdict == DiagnosisVerdict::kCorrect) {
    *diagnosis = *std::move(first);
    diagnosis->seen.emplace_back("y is right: the fault is in y_first alone");
    return {};
  }
  const bool known = first && first->verdict != DiagnosisVerdict::kUnexplained;
  if (!known || !NamesAny(*diagnosis, kOffForGood)) return {};
  const char* const other = NamesAny(*first, kUnused) ? kOffForGood : kUnused;
  std::erase_if(diagnosis->explanations, [&](const Explanation& e) { return Names(e, other); });
  if (diagnosis->explanations.size() == 1) diagnosis->verdict = DiagnosisVerdict::kFault;
  std::erase(diagnosis->ask_for, "y_first");
  return {};
}

// What is wrong on one path alone is another fault than what is wrong on both.
Status JudgeEvaluation(const TensorFile& file, const std::string& where, const AttentionDump& dump,
                       Diagnosis* diagnosis) {
  HEED_ASSIGN(auto eval, DiagnoseInPlaceOfY(file, where, "y_eval", 0, dump));
  if (!eval) return {};
  const bool right = eval->verdict == DiagnosisVerdict::kCorrect;
  if (!right && diagnosis->verdict == DiagnosisVerdict::kCorrect) {
    eval->seen.emplace_back("y is right: the fault is in y_eval alone");
    *diagnosis = std::move(*eval);
    return {};
  }
  if (right) Rename("mask_missing", "mask_dropped_on_a_path", diagnosis);
  diagnosis->seen.emplace_back(right ? "y_eval is right" : "y_eval is wrong as well");
  return {};
}

// ------------------------------------------------------------------ gradients

using Gradients = std::map<std::string, TracedTensor>;

// Products of the weights' gradients run over the first `weight_rows` of B * T rows.
Gradients GradientsOf(AttentionCase attention, int64_t weight_rows) {
  Gradients gradients;
  for (TracedTensor& tensor : TraceAttention(attention, weight_rows)) {
    if (tensor.name.starts_with("grad.")) gradients[tensor.name] = std::move(tensor);
  }
  return gradients;
}

// What a backward pass for two dimensions makes of three.
std::vector<std::pair<std::string, Gradients>> OfTwoDimensions(const AttentionCase& right) {
  const auto rows = static_cast<int64_t>(right.dy.size()) / (right.B * right.T);
  std::vector<std::pair<std::string, Gradients>> all;
  all.emplace_back("the first sequence alone", GradientsOf(right, right.T));
  all.emplace_back("as many rows as the batch has sequences", GradientsOf(right, right.B));
  AttentionCase last = right, mean = right;
  std::fill_n(last.dy.begin(), (right.B - 1) * right.T * rows, 0.0);
  for (double& value : mean.dy) value /= static_cast<double>(right.B);
  all.emplace_back("the last sequence alone", GradientsOf(last, 0));
  all.emplace_back("the mean over the batch in place of the sum", GradientsOf(mean, 0));
  return all;
}

class GradientJudge {
 public:
  GradientJudge(const TensorFile& file, const std::string& where, const AttentionDump& dump,
                Diagnosis* diagnosis)
      : file_(file), where_(where), dump_(dump), diagnosis_(*diagnosis) {}

  Status Run() {
    const AttentionCase& a = dump_.attention;
    if (a.dy.empty() || diagnosis_.verdict != DiagnosisVerdict::kCorrect) return {};
    const Gradients right = GradientsOf(a, 0);
    HEED_TRY(Read(right));
    if (theirs_.empty()) return {};
    for (const auto& [name, ours] : right) size_ = std::max(size_, RootMeanSquare(ours.values));
    if (!IsTraced()) {
      diagnosis_.seen.emplace_back(
          "gradients were not looked at: state every setting; padding, documents, slopes and "
          "norms of q and k have none here");
      return {};
    }
    double worst = 0;
    for (const auto& [name, values] : theirs_) {
      const TracedTensor& ours = right.at(name);
      const double residual = Distance(values, ours.values);
      worst = std::max(worst, residual);
      if (residual <= Floor() || diagnosis_.first_difference) continue;
      const auto index = FirstDifferenceOf(values, ours.values, ours.shape, Floor());
      diagnosis_.first_difference =
          FirstDifference{name, index.value_or(std::vector<int64_t>(ours.shape.size()))};
    }
    if (!diagnosis_.first_difference) {
      diagnosis_.seen.emplace_back("the gradients that were saved are right");
      return {};
    }
    diagnosis_.reference_residual = worst;
    diagnosis_.verdict = DiagnosisVerdict::kUnexplained;
    diagnosis_.explanations.clear();
    diagnosis_.seen.emplace_back("y is right: the fault is in the backward pass");
    for (const auto& [detail, gradients] : OfTwoDimensions(a)) Try(right, gradients, detail);
    return {};
  }

 private:
  // Sharp scores cancel in softmax's backward pass: in 16 bits little of some gradients is left.
  double Floor() const {
    const bool coarse = diagnosis_.noise_floor > UnitRoundoff(DType::kF16);
    return coarse ? 0.5 : 4 * diagnosis_.noise_floor;
  }

  // Relative to the gradient, or where it cancels, as a key bias's does, to the others.
  double Distance(std::vector<double> theirs, const std::vector<double>& ours) const {
    constexpr double kCancelled = 0.01;
    for (size_t i = 0; i < ours.size(); ++i) theirs[i] -= ours[i];
    const bool finite = std::ranges::all_of(theirs, [](double x) { return std::isfinite(x); });
    if (!finite) return std::numeric_limits<double>::infinity();
    return RootMeanSquare(theirs) / std::max(RootMeanSquare(ours), kCancelled * size_);
  }

  Status Read(const Gradients& right) {
    for (const auto& [name, ours] : right) {
      const TensorEntry* entry = file_.Find(name);
      if (entry == nullptr) continue;
      if (entry->shape != ours.shape) {
        return Fail(ErrorKind::kFormat, where_ + ": tensor " + Quoted(name),
                    ShapeText(entry->shape), ShapeText(ours.shape),
                    "a gradient has the shape of what it belongs to");
      }
      HEED_ASSIGN(theirs_[name], file_.Doubles(name));
    }
    return {};
  }

  // Whether the plain forward pass, of which the gradients are, is the one that explained y.
  bool IsTraced() const {
    const AttentionContext& context = dump_.context;
    if (context.Padded() || context.Packed() || context.alibi || context.HasGains() ||
        context.qk_norm.value_or(NormPlace::kNone) != NormPlace::kNone) {
      return false;
    }
    const TheirTensor& last = dump_.theirs.back();
    for (const TracedTensor& tensor : TraceAttention(dump_.attention)) {
      if (tensor.name != NameOf(last.stage)) continue;
      return Residual(last.values, tensor.values) <= diagnosis_.noise_floor;
    }
    return false;
  }

  // Each of theirs must be right, or what `wrong` has of it.
  void Try(const Gradients& right, const Gradients& wrong, const std::string& detail) {
    double worst = 0;
    for (const auto& [name, values] : theirs_) {
      // Gradients of what is no weight are no sums over rows.
      const bool is_sum = name.ends_with("weight") || name.ends_with("bias");
      const double residual = Distance(values, right.at(name).values);
      worst = std::max(
          worst, is_sum ? std::min(residual, Distance(values, wrong.at(name).values)) : residual);
    }
    if (!(worst <= Floor()) || !diagnosis_.explanations.empty()) return;
    diagnosis_.verdict = DiagnosisVerdict::kFault;
    diagnosis_.explanations = {{{"gradient_rank_assumption"}, worst, "sums over " + detail}};
  }

  const TensorFile& file_;
  const std::string& where_;
  const AttentionDump& dump_;
  Diagnosis& diagnosis_;
  std::map<std::string, std::vector<double>> theirs_;
  double size_ = 0;  // of the largest gradient
};

}  // namespace

Status JudgeOtherPaths(const TensorFile& file, const std::string& where, const AttentionDump& dump,
                       Diagnosis* diagnosis) {
  HEED_TRY(JudgeFirst(file, where, dump, diagnosis));
  HEED_TRY(JudgeEvaluation(file, where, dump, diagnosis));
  return GradientJudge(file, where, dump, diagnosis).Run();
}

}  // namespace heed
