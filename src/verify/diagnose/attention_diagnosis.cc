#include "verify/diagnose/attention_diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "base/quote.h"
#include "tensor/shape.h"
#include "verify/diagnose/attention_dropout.h"
#include "verify/diagnose/attention_dump.h"
#include "verify/diagnose/attention_paths.h"
#include "verify/diagnose/attention_search.h"
#include "verify/diagnose/attention_structure.h"

namespace heed {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Diagnostician {
 public:
  explicit Diagnostician(const AttentionDump& dump) : dump_(dump), search_(dump) {}

  Diagnosis Run() {
    tried_ = search_.Run();
    const AttentionHypothesis& best =
        *std::ranges::min_element(tried_, {}, &AttentionHypothesis::residual);
    NoiseFloor floor = search_.FloorOf(best.recipe);
    for (const AttentionHypothesis& h : tried_) {
      if (h.faults.empty() && h.residual < 0.1) {
        floor.arithmetic = std::max(floor.arithmetic, search_.FloorOf(h.recipe).arithmetic);
        break;
      }
    }
    const std::vector<AttentionDropout>& dropouts = search_.dropouts();
    diagnosis_ = Conclude(dropouts.empty() ? Explanations(floor.arithmetic) : OfDropout(), floor);
    diagnosis_.reference_residual = kInfinity;
    for (const AttentionHypothesis& h : tried_) {
      if (!h.faults.empty()) continue;
      diagnosis_.reference_residual = std::min(diagnosis_.reference_residual, h.residual);
    }
    if (dropouts.empty() && DepartsInOneRow(floor.arithmetic)) {
      diagnosis_.verdict = DiagnosisVerdict::kUnexplained;
      diagnosis_.explanations.clear();
      diagnosis_.seen.emplace_back(
          "one row alone departs: in 16 bits two scores that are almost the same change places");
    }
    const bool dropped = !dropouts.empty() && !diagnosis_.explanations.empty();
    chosen_ = dropped ? BaseOf(diagnosis_.explanations[0]) : Chosen();
    if (dropped) SayDropout();
    right_ = search_.conventions()[chosen_->convention].right;
    ReportConventions();
    Locate();
    if (diagnosis_.verdict == DiagnosisVerdict::kAmbiguous) AskFor();
    if (diagnosis_.verdict == DiagnosisVerdict::kCorrect) SayWhatIsHidden();
    if (diagnosis_.verdict == DiagnosisVerdict::kUnexplained) DescribeError();
    if (dump_.dropout > 0 && dropouts.empty()) JudgeNothingDropped();
    return std::move(diagnosis_);
  }

 private:
  // A hypothesis and how far it is from their very bits.
  struct Replayed {
    const AttentionHypothesis* hypothesis;
    double rounded;
    // Where all was computed more finely than it was stored, the true formula has their bits.
    bool HasTheirBits() const {
      return std::isfinite(rounded) && rounded <= kFewBits * hypothesis->residual + 1e-12;
    }
  };
  static constexpr double kFewBits = 0.2;

  // Whether what has no fitted number does as well as `fitted`.
  static bool IsMatched(const Replayed& fitted, const std::vector<Replayed>& all) {
    return fitted.hypothesis->fitted && std::ranges::any_of(all, [&](const Replayed& other) {
             return !other.hypothesis->fitted && !other.hypothesis->faults.empty() &&
                    other.hypothesis->residual <= 1.5 * fitted.hypothesis->residual &&
                    (other.HasTheirBits() || !fitted.HasTheirBits());
           });
  }

  // Whether one of many rows in 16 bits is all that a name stands on.
  bool DepartsInOneRow(double floor) {
    constexpr int64_t kMany = 32;
    const bool coarse = UnitRoundoff(dump_.output) > UnitRoundoff(DType::kF32);
    if (!coarse || diagnosis_.explanations.empty() || diagnosis_.explanations[0].faults.empty()) {
      return false;
    }
    const AttentionHypothesis* right = nullptr;
    for (const AttentionHypothesis& h : tried_) {
      const bool nearer = right == nullptr || h.residual < right->residual;
      if (h.faults.empty() && nearer) right = &h;
    }
    const TheirTensor& last = dump_.theirs.back();
    const auto ours = search_.replay().Tensor(right->recipe, last.stage);
    const int64_t width = last.shape.back();
    const int64_t rows = static_cast<int64_t>(last.values.size()) / width;
    double all = 0, most = 0, size = 0;
    for (int64_t row = 0; row < rows; ++row) {
      double error = 0;
      for (int64_t i = row * width; i < (row + 1) * width; ++i) {
        error += std::pow(last.values[i] - (*ours)[i], 2);
        size += std::pow((*ours)[i], 2);
      }
      all += error;
      most = std::max(most, error);
    }
    const double noise = floor * floor * size;
    return rows >= kMany && all > noise && all - most <= noise;
  }

  // One for each set of faults, with the best of its variants.
  std::vector<Explanation> Explanations(double floor) {
    std::vector<Replayed> all;
    for (const AttentionHypothesis& h : tried_) {
      all.push_back({&h, search_.RoundedResidualOf(h.recipe)});
    }
    // The nearest of those with their bits, which prove nothing where another tensor is missed.
    double bits = kInfinity;
    for (const Replayed& each : all) {
      const double residual = each.hypothesis->residual;
      if (each.HasTheirBits() && residual <= floor) bits = std::min(bits, residual);
    }
    // Beside a right formula within the noise, a number that was fitted is one of many that come
    // nearer.
    const bool right = std::ranges::any_of(tried_, [floor](const AttentionHypothesis& h) {
      return h.faults.empty() && h.residual <= floor;
    });
    std::vector<Explanation> explanations;
    for (const Replayed& each : all) {
      const AttentionHypothesis& h = *each.hypothesis;
      // A wrong formula can have a few rows' bits by chance: the right one yields to nearer ones.
      const bool stays = each.HasTheirBits() || (h.faults.empty() && h.residual <= bits);
      if (IsMatched(each, all) || (bits < kInfinity && !stays)) continue;
      if (right && h.fitted) continue;
      Explanation explanation{NamesOf(h), h.residual, h.detail};
      const auto same = std::ranges::find(explanations, explanation.faults, &Explanation::faults);
      if (same == explanations.end()) {
        explanations.push_back(std::move(explanation));
      } else if (explanation.residual < same->residual) {
        *same = std::move(explanation);
      }
    }
    return explanations;
  }

  // What the first explanation was made by; the nearest right formula when there is none.
  const AttentionHypothesis* Chosen() const {
    const AttentionHypothesis* chosen = nullptr;
    for (const AttentionHypothesis& h : tried_) {
      const bool fits = diagnosis_.explanations.empty()
                            ? h.faults.empty()
                            : NamesOf(h) == diagnosis_.explanations[0].faults;
      if (fits && (chosen == nullptr || h.residual < chosen->residual)) chosen = &h;
    }
    return chosen;
  }

  std::vector<Explanation> OfDropout() const {
    std::vector<Explanation> explanations;
    for (const AttentionDropout& d : search_.dropouts()) explanations.push_back(d.explanation);
    return explanations;
  }

  const AttentionHypothesis* BaseOf(const Explanation& explanation) const {
    const auto made_by =
        std::ranges::find_if(search_.dropouts(), [&](const AttentionDropout& dropout) {
          return dropout.explanation.faults == explanation.faults;
        });
    return &made_by->base;
  }

  void SayDropout() {
    if (dump_.dropout > 0) {
      diagnosis_.seen.push_back("dropout as stated, " + search_.dropouts()[0].explanation.detail);
    } else {
      diagnosis_.seen.emplace_back("run it twice: results with live dropout differ between runs");
    }
  }

  // Dropout is stated, and what explains theirs has none.
  void JudgeNothingDropped() {
    constexpr double kMostLuck = 1e-6;
    if (diagnosis_.explanations.empty()) return;
    const auto [weights, luck] =
        ChanceOfNoDrop(dump_, chosen_->recipe, diagnosis_.noise_floor, &search_.replay());
    if (luck >= kMostLuck) {
      diagnosis_.seen.push_back(fmt::format(
          "whether dropout acts cannot be seen: nothing is dropped of {} weights that would show "
          "it, which chance does with probability {:.2g}; the dump is too small",
          weights, luck));
      diagnosis_.ask_for.emplace_back("more positions or batch rows");
      return;
    }
    std::vector<Explanation> named;
    for (const Explanation& explanation : diagnosis_.explanations) {
      for (const char* fault : {"dropout_unused", "dropout_off_for_good"}) {
        named.push_back(explanation);
        named.back().faults.emplace_back(fault);
        std::ranges::sort(named.back().faults);
      }
    }
    diagnosis_.explanations = std::move(named);
    diagnosis_.verdict = DiagnosisVerdict::kAmbiguous;
    diagnosis_.seen.push_back(fmt::format(
        "nothing is dropped of {} weights that would show it, though dropout {:g} is stated: "
        "chance does that with probability {:.1e}",
        weights, dump_.dropout, luck));
    diagnosis_.ask_for = {"y_first"};
  }

  // Only what other decisions would have made worse.
  void ReportConventions() {
    const std::vector<AttentionConvention>& all = search_.conventions();
    const std::map<std::string, std::string>& texts = all[chosen_->convention].texts;
    diagnosis_.conventions = texts;
    for (const auto& [name, text] : texts) {
      for (const AttentionConvention& other : all) {
        // Where nothing reproduces theirs, the nearest of several decides nothing.
        const auto same = other.texts.find(name);
        const bool open = same == other.texts.end() || same->second != text;
        if (open && diagnosis_.explanations.empty()) diagnosis_.conventions.erase(name);
        if (!DiffersOnlyIn(other.texts, texts, name)) continue;
        AttentionRecipe recipe = other.right;
        for (const Change& change : chosen_->changes) change(&recipe);
        double residual = 0;
        for (const TheirTensor& tensor : dump_.theirs) {
          residual = std::max(residual, search_.ResidualOf(recipe, tensor));
        }
        if (residual <= 2 * chosen_->residual + 1e-12) diagnosis_.conventions.erase(name);
      }
    }
  }

  static bool DiffersOnlyIn(const std::map<std::string, std::string>& a,
                            const std::map<std::string, std::string>& b, const std::string& name) {
    if (a.size() != b.size()) return false;
    return std::ranges::all_of(a, [&](const auto& entry) {
      const auto other = b.find(entry.first);
      if (other == b.end()) return false;
      return (entry.first == name) != (entry.second == other->second);
    });
  }

  // Where theirs first departs from the right formula, and the rows that do not.
  void Locate() {
    // What explains them says how much of a difference is noise.
    const double floor =
        diagnosis_.explanations.empty()
            ? diagnosis_.noise_floor
            : std::max(4 * diagnosis_.explanations[0].residual, 8 * UnitRoundoff(dump_.output));
    const TheirTensor& last = dump_.theirs.back();
    const size_t rank = last.shape.size();
    const int64_t T = last.shape[rank - 2], width = last.shape[rank - 1];
    const auto ours = search_.replay().Tensor(right_, last.stage);
    const auto outer = static_cast<int64_t>(last.values.size()) / (T * width);
    diagnosis_.equal_rows = EqualRows(last.values, *ours, outer, T, width, floor);
    if (diagnosis_.verdict == DiagnosisVerdict::kCorrect) return;
    for (const TheirTensor& tensor : dump_.theirs) {
      if (search_.ResidualOf(right_, tensor) <= floor) continue;
      const auto right = search_.replay().Tensor(right_, tensor.stage);
      for (const double bound : {3 * floor, floor, 0.0}) {
        const auto index = FirstDifferenceOf(tensor.values, *right, tensor.shape, bound);
        if (!index) continue;
        diagnosis_.first_difference = FirstDifference{tensor.name, *index};
        return;
      }
    }
  }

  const AttentionHypothesis* MadeBy(const Explanation& explanation) const {
    for (const AttentionHypothesis& h : tried_) {
      if (NamesOf(h) == explanation.faults && h.residual == explanation.residual) return &h;
    }
    return nullptr;
  }

  // The tensor, not given, in which the explanations part; the latest stage that does it.
  void AskFor() {
    std::vector<const AttentionRecipe*> recipes;
    for (const Explanation& explanation : diagnosis_.explanations) {
      if (const AttentionHypothesis* made_by = MadeBy(explanation))
        recipes.push_back(&made_by->recipe);
    }
    for (const Stage stage : {Stage::kZ, Stage::kPattern, Stage::kScores, Stage::kQRot,
                              Stage::kKRot, Stage::kV, Stage::kK, Stage::kQ}) {
      const bool given = std::ranges::any_of(
          dump_.theirs, [stage](const TheirTensor& t) { return t.stage == stage; });
      if (given || (dump_.attention.qkv.parts.empty() && stage <= Stage::kV)) continue;
      if (!AllDiffer(recipes, stage)) continue;
      diagnosis_.ask_for = {std::string(NameOf(stage))};
      return;
    }
    diagnosis_.seen.emplace_back(
        "no tensor of this layer separates them at these sizes: try others, pairwise different");
  }

  bool AllDiffer(const std::vector<const AttentionRecipe*>& recipes, Stage stage) {
    for (size_t a = 0; a < recipes.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        const double apart = Residual(*search_.replay().Tensor(*recipes[a], stage),
                                      *search_.replay().Tensor(*recipes[b], stage));
        if (!(apart > 10 * diagnosis_.noise_floor)) return false;
      }
    }
    return true;
  }

  bool HasRotated() const {
    return std::ranges::any_of(dump_.theirs, [](const TheirTensor& t) {
      return t.stage == Stage::kQRot || t.stage == Stage::kKRot;
    });
  }

  bool SameWith(const Change& change) {
    AttentionRecipe recipe = right_;
    change(&recipe);
    return std::ranges::all_of(dump_.theirs, [&](const TheirTensor& tensor) {
      return Residual(*search_.replay().Tensor(recipe, tensor.stage),
                      *search_.replay().Tensor(right_, tensor.stage)) < 1e-12;
    });
  }

  // Faults that leave these tensors as they are.
  void SayWhatIsHidden() {
    const AttentionFacts& facts = search_.conventions()[chosen_->convention].facts;
    const bool has_k = std::ranges::any_of(
        dump_.theirs, [](const TheirTensor& t) { return t.stage == Stage::kK; });
    if ((facts.biases & kKProj) != 0 && facts.rotary == 0 && facts.P == 0 && !has_k) {
      diagnosis_.seen.emplace_back(
          "whether the key bias was added cannot be seen: it cancels in softmax without RoPE; "
          "hand over k");
      diagnosis_.ask_for = {"k"};
    }
    if (facts.padded && SameWith([](AttentionRecipe* r) { r->mask.pads = PadChoice::kSeen; })) {
      diagnosis_.seen.emplace_back(
          "whether padding is hidden cannot be seen: it lies behind the tokens, where no token "
          "looks; pad on the left");
    }
    if (facts.packed && facts.rotary > 0 && !HasRotated()) {
      diagnosis_.seen.emplace_back(
          "whether positions restart with each document cannot be seen in y under RoPE; hand over "
          "q_rot and position_ids");
    }
    if (facts.window > 0 && facts.S <= facts.window) {
      diagnosis_.seen.emplace_back(
          fmt::format("the window of {} keys cannot be seen in {} keys; hand over more positions",
                      facts.window, facts.S));
    }
  }

  void DescribeError() {
    const TheirTensor& last = dump_.theirs.back();
    std::ranges::move(StructureOfError(dump_, *search_.replay().Tensor(right_, last.stage),
                                       diagnosis_.noise_floor),
                      std::back_inserter(diagnosis_.seen));
    if (!dump_.attention.qkv.parts.empty() && dump_.attention.proj.parts.empty()) {
      diagnosis_.seen.emplace_back("the file has no o_proj: y was taken for the merged heads");
    }
    for (const TheirTensor& tensor : dump_.theirs) {
      if (tensor.stage == last.stage) break;
      if (search_.ResidualOf(right_, tensor) > diagnosis_.noise_floor) break;
      diagnosis_.seen.push_back(fmt::format("{} is right: the fault lies behind it", tensor.name));
    }
    for (const Stage stage : {Stage::kMerged, Stage::kPattern, Stage::kQRot}) {
      const bool given = std::ranges::any_of(
          dump_.theirs, [stage](const TheirTensor& t) { return t.stage == stage; });
      if (!given) diagnosis_.ask_for.emplace_back(NameOf(stage));
    }
  }

  const AttentionDump& dump_;
  AttentionSearch search_;
  std::vector<AttentionHypothesis> tried_;
  Diagnosis diagnosis_;
  const AttentionHypothesis* chosen_ = nullptr;
  AttentionRecipe right_;
};

// A result that is not finite is a fault when one is known to make it so, else a bad dump.
Status CheckResults(const AttentionDump& dump, const Diagnosis& diagnosis,
                    const std::string& where) {
  if (diagnosis.verdict != DiagnosisVerdict::kUnexplained) return {};
  for (const TheirTensor& tensor : dump.theirs) {
    if (tensor.stage == Stage::kScores) continue;
    const auto bad =
        std::ranges::find_if(tensor.values, [](double x) { return !std::isfinite(x); });
    if (bad == tensor.values.end()) continue;
    return Fail(ErrorKind::kFormat, where + ": tensor " + Quoted(tensor.name),
                fmt::format("{} at {}", *bad,
                            ShapeText(IndexOf(bad - tensor.values.begin(), tensor.shape))),
                "finite numbers", "no known fault leaves just these entries so");
  }
  return {};
}

}  // namespace

Diagnosis DiagnoseAttention(const AttentionDump& dump) { return Diagnostician(dump).Run(); }

Result<Diagnosis> DiagnoseAttention(const TensorFile& file, const std::string& where,
                                    const SettingTexts& given) {
  HEED_ASSIGN(AttentionDump dump, ReadAttentionDump(file, where, given));
  Diagnosis diagnosis = DiagnoseAttention(dump);
  HEED_TRY(CheckResults(dump, diagnosis, where));
  HEED_TRY(JudgeOtherPaths(file, where, dump, &diagnosis));
  return diagnosis;
}

}  // namespace heed
