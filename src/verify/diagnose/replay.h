// Replays of an implementation with known faults, held against the numbers that somebody saved: the
// search that all kinds of dumps but attention share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensor/dtype.h"
#include "verify/diagnose/diagnosis.h"
#include "verify/diagnose/noise.h"
#include "verify/diagnose/search.h"

namespace heed {

// A tensor that was saved.
struct Observed {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<double> values;
  DType dtype = DType::kF32;  // the coarsest that holds the values: see EffectiveDType
};

// What one replay yields, tensor by tensor in the order of those observed.
using Outputs = std::vector<std::vector<double>>;

// How far a replay lies from what was saved.
struct Agreement {
  double residual = 0;  // of the tensor that is worst
  // Elements that differ once ours are rounded into their type. Where they computed more finely
  // than they stored, the true formula has their very bits, and every other one, however near, has
  // not.
  int64_t wrong_bits = 0;
};
Agreement Agree(const std::vector<Observed>& theirs, const Outputs& ours);

// Whether two replays differ by the order of double's sums alone.
bool SameNumbers(const Outputs& a, const Outputs& b);

struct Tried {
  Explanation explanation;
  int64_t wrong_bits = 0;  // see Agreement
  size_t convention = 0;   // an index
};

// Conclude, after those that miss theirs by bits are set aside where another one has every bit.
Diagnosis ConcludeReplays(const std::vector<Tried>& tried, const NoiseFloor& floor);

// Fills first_difference and, from the tensor with index `rows`, equal_rows.
void Locate(const std::vector<Observed>& theirs, const Outputs& right, size_t rows,
            Diagnosis* diagnosis);

// Where `f` is least between low and high, by golden sections; few of them where it does not fall
// below `enough`.
double Refine(double low, double high, double enough, const std::function<double(double)>& f);

// A fault's parameter.
template <class Choices>
struct Fit {
  std::vector<double> grid;  // rising; the best is refined between its neighbours
  bool whole = false;        // the grid is all there is
  std::function<void(double, Choices*)> change;
  std::function<bool(double)> belongs;  // false where the number is right, or another fault's
  std::function<std::string(double)> detail;
};

// One known fault as a change of the choices that a replay makes.
template <class Choices>
struct Deviation {
  std::string id;
  // Deviations of one stage exclude each other.
  std::string stage;
  std::function<void(Choices*)> apply;
  // What would show the fault where nothing at hand does; may be empty.
  std::string needs;
  // Said of the variant: "silu(up) gate"; may be empty.
  std::string detail;
  Fit<Choices> fit;  // in place of `apply` where it has a grid
};

template <class Choices>
struct Reading {
  std::map<std::string, std::string> names;
  Choices choices;
};

template <class Choices>
struct Replayer {
  std::vector<Observed> theirs;
  NoiseFloor floor;
  std::function<Outputs(const Choices&)> replay;
  // Each no more than the residual that a replay would have, and cheaper by far; the last one is
  // the nearest to it. What they put out of the question is not replayed.
  std::vector<std::function<double(const Choices&)>> at_least;
  std::vector<Deviation<Choices>> deviations;
  size_t rows = 0;  // index of the tensor that equal_rows speaks of
  size_t most_faults = 3;
  // Pairs are tried with at most this many singles, those nearest to theirs.
  size_t most_partners = 64;
};

// What a fault makes of somebody's inputs, beside what is right: for its picture.
struct FaultView {
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> shapes;
  Outputs right, wrong;
};

// Of the first way to make the fault `id` that changes a number here; nothing when there is none.
template <class Choices>
std::optional<FaultView> ViewOf(const Replayer<Choices>& replayer, const Choices& right,
                                const std::string& id) {
  FaultView view{.right = replayer.replay(right)};
  for (const Observed& tensor : replayer.theirs) {
    view.names.push_back(tensor.name);
    view.shapes.push_back(tensor.shape);
  }
  for (const Deviation<Choices>& deviation : replayer.deviations) {
    if (deviation.id != id) continue;
    std::vector<Choices> ways(1, right);
    if (deviation.fit.grid.empty()) deviation.apply(&ways[0]);
    for (const double value : deviation.fit.grid) {
      if (!deviation.fit.belongs(value)) continue;
      deviation.fit.change(value, &ways.emplace_back(right));
    }
    // The last of a grid is the farthest from what is usual.
    view.wrong = replayer.replay(ways.back());
    if (!SameNumbers(view.right, view.wrong)) return view;
  }
  return std::nullopt;
}

template <class Choices>
class FaultSearch {
 public:
  FaultSearch(const Replayer<Choices>& replayer, const std::vector<Reading<Choices>>& conventions)
      : r_(replayer), conventions_(conventions) {}

  Diagnosis Run() {
    for (size_t c = 0; c < conventions_.size(); ++c) {
      right_.push_back(r_.replay(conventions_[c].choices));
      Add({}, "", Agree(r_.theirs, right_[c]), c);
    }
    // Where the correct formula fits under one convention, the others need no faults.
    const size_t nearest = Nearest().convention;
    const bool fits = Nearest().explanation.residual <= r_.floor.arithmetic;
    std::vector<Hypothesis> level;
    for (size_t c = fits ? nearest : 0; c < (fits ? nearest + 1 : conventions_.size()); ++c) {
      level.push_back({{}, conventions_[c].choices, c, 0, ""});
    }
    for (size_t faults = 1; faults <= r_.most_faults; ++faults) {
      level = Extend(level);
      if (Conclude().verdict == DiagnosisVerdict::kCorrect) break;
      const double enough = std::min(4 * r_.floor.storage, r_.floor.arithmetic);
      if (Nearest().explanation.residual <= enough || faults == r_.most_faults) break;
      ReplayAside(&level);
      if (level.size() > r_.most_partners) level.resize(r_.most_partners);
    }
    return Finish();
  }

 private:
  struct Hypothesis {
    std::vector<size_t> faults;  // rising indices of deviations
    Choices choices;
    size_t convention;
    double residual;
    std::string detail;
  };
  // A hypothesis with one fault more.
  struct Extended {
    Hypothesis base;
    size_t deviation;
    std::vector<size_t> faults;
  };

  void Add(std::vector<std::string> faults, std::string detail, const Agreement& agreement,
           size_t convention) {
    tried_.push_back({{std::move(faults), agreement.residual, std::move(detail)},
                      agreement.wrong_bits,
                      convention});
  }

  static bool Nearer(const Tried& a, const Tried& b) {
    return a.explanation.residual < b.explanation.residual;
  }

  const Tried& Nearest() const { return *std::min_element(tried_.begin(), tried_.end(), Nearer); }
  const Tried& NearestRight() const {
    return *std::min_element(tried_.begin(), tried_.begin() + std::ssize(right_), Nearer);
  }

  Diagnosis Conclude() const { return ConcludeReplays(tried_, r_.floor); }

  // Every hypothesis with one fault more, nearest first.
  std::vector<Hypothesis> Extend(const std::vector<Hypothesis>& level) {
    std::vector<Hypothesis> next;
    std::vector<std::vector<size_t>> seen;
    aside_.clear();
    for (const Hypothesis& base : level) {
      for (const size_t d : PlainFirst()) {
        if (!Joins(base, d) || IsNeedless(r_.deviations[d])) continue;
        std::vector<size_t> faults = base.faults;
        faults.insert(std::upper_bound(faults.begin(), faults.end(), d), d);
        std::vector<size_t> key = faults;
        key.push_back(base.convention);
        if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
        seen.push_back(std::move(key));
        Extended extended{base, d, std::move(faults)};
        if (IsOutOfTheQuestion(extended)) {
          aside_.push_back(std::move(extended));
        } else {
          Try(extended, &next);
        }
      }
    }
    SortByResidual(&next);
    return next;
  }

  // What is out of the question alone may still join others.
  void ReplayAside(std::vector<Hypothesis>* level) {
    for (const Extended& extended : aside_) Try(extended, level);
    SortByResidual(level);
  }

  static void SortByResidual(std::vector<Hypothesis>* level) {
    std::stable_sort(level->begin(), level->end(), [](const Hypothesis& a, const Hypothesis& b) {
      return a.residual < b.residual;
    });
  }

  // Whether it is sure, without a replay, to be no explanation.
  bool IsOutOfTheQuestion(const Extended& extended) const {
    const Deviation<Choices>& deviation = r_.deviations[extended.deviation];
    // What is asked for where a fault changes nothing takes a replay.
    if (r_.at_least.empty() || !deviation.needs.empty()) return false;
    // Explanations lie within one and a half of the floor.
    const double bound = 2 * r_.floor.arithmetic;
    if (deviation.fit.grid.empty()) {
      Choices choices = extended.base.choices;
      deviation.apply(&choices);
      return std::any_of(r_.at_least.begin(), r_.at_least.end(),
                         [&](const auto& at_least) { return at_least(choices) > bound; });
    }
    const auto& at_least = r_.at_least.back();
    const auto at = [&](double value) {
      Choices choices = extended.base.choices;
      deviation.fit.change(value, &choices);
      return at_least(choices);
    };
    const double near =
        std::max(0.3 * at_least(conventions_[extended.base.convention].choices), bound);
    return at(Fitted(deviation.fit, near, at)) > bound;
  }

  // Deviations, those with a number to fit behind the others: they cost some dozen replays each.
  std::vector<size_t> PlainFirst() const {
    std::vector<size_t> order(r_.deviations.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_partition(order.begin(), order.end(),
                          [&](size_t d) { return r_.deviations[d].fit.grid.empty(); });
    return order;
  }

  // Their very bits, of so many numbers that chance has no part in it.
  bool IsExact(const Tried& tried) const {
    size_t elements = 0;
    for (const Observed& tensor : r_.theirs) elements += tensor.values.size();
    return elements >= 64 && tried.wrong_bits < 2 && tried.explanation.residual <= r_.floor.storage;
  }

  // Beside their very bits, what is left is tried only for saying what does not show.
  bool IsNeedless(const Deviation<Choices>& deviation) const {
    return IsExact(NearestRight()) ? deviation.needs.empty()
                                   : !deviation.fit.grid.empty() && IsExact(Nearest());
  }

  // A fault that changes nothing alone joins no other.
  bool Joins(const Hypothesis& base, size_t d) const {
    if (!base.faults.empty() && std::find(idle_.begin(), idle_.end(), d) != idle_.end()) {
      return false;
    }
    return std::none_of(base.faults.begin(), base.faults.end(), [&](size_t other) {
      return r_.deviations[other].stage == r_.deviations[d].stage;
    });
  }

  void Try(const Extended& extended, std::vector<Hypothesis>* next) {
    const auto& [base, d, faults] = extended;
    const Deviation<Choices>& deviation = r_.deviations[d];
    Hypothesis hypothesis{faults, base.choices, base.convention, 0, base.detail};
    std::string detail = deviation.detail;
    if (!deviation.fit.grid.empty()) {
      const double value = Fitted(deviation.fit, 0.3 * NearestRight().explanation.residual,
                                  [&, &choices = base.choices](double at) {
                                    return ResidualAt(choices, deviation.fit, at);
                                  });
      if (!deviation.fit.belongs(value)) return;
      deviation.fit.change(value, &hypothesis.choices);
      detail = deviation.fit.detail(value);
    } else {
      deviation.apply(&hypothesis.choices);
    }
    const Outputs outputs = r_.replay(hypothesis.choices);
    if (SameNumbers(outputs, right_[base.convention])) {
      if (base.faults.empty()) idle_.push_back(d);
      return;
    }
    const Agreement agreement = Agree(r_.theirs, outputs);
    hypothesis.residual = agreement.residual;
    if (!detail.empty()) {
      hypothesis.detail += (hypothesis.detail.empty() ? "" : ", ") + detail;
    }
    Add(NamesOf(hypothesis.faults), hypothesis.detail, agreement, base.convention);
    next->push_back(std::move(hypothesis));
  }

  std::vector<std::string> NamesOf(const std::vector<size_t>& faults) const {
    std::vector<std::string> names;
    for (const size_t fault : faults) {
      const std::string& id = r_.deviations[fault].id;
      if (std::find(names.begin(), names.end(), id) == names.end()) names.push_back(id);
    }
    return names;
  }

  double ResidualAt(const Choices& base, const Fit<Choices>& fit, double value) const {
    Choices choices = base;
    fit.change(value, &choices);
    return Agree(r_.theirs, r_.replay(choices)).residual;
  }

  // The parameter nearest to theirs: the best of the grid, refined by golden sections (of its
  // logarithm where it is positive) as far as it comes `near`, and rounded where that does no harm.
  template <class At>
  double Fitted(const Fit<Choices>& fit, double near, const At& residual_at) const {
    const std::vector<double>& grid = fit.grid;
    std::vector<double> residuals;
    for (const double value : grid) residuals.push_back(residual_at(value));
    const size_t best = std::min_element(residuals.begin(), residuals.end()) - residuals.begin();
    if (fit.whole || residuals[best] <= r_.floor.storage) return grid[best];
    const bool positive = grid.front() > 0;
    const auto bend = [positive](double x) { return positive ? std::log(x) : x; };
    const auto unbend = [positive](double x) { return positive ? std::exp(x) : x; };
    const double refined = unbend(Refine(bend(grid[best > 0 ? best - 1 : 0]),
                                         bend(grid[std::min(best + 1, grid.size() - 1)]), near,
                                         [&](double x) { return residual_at(unbend(x)); }));
    const double bound = std::max(1.1 * residual_at(refined), r_.floor.storage);
    const double scale = std::pow(10.0, 1 - std::floor(std::log10(std::abs(refined))));
    const double round = std::round(refined * scale) / scale;
    return residual_at(round) <= bound ? round : refined;
  }

  Diagnosis Finish() {
    Diagnosis diagnosis = Conclude();
    const size_t convention = ConventionOf(diagnosis);
    diagnosis.conventions = conventions_[convention].names;
    Locate(r_.theirs, right_[convention], r_.rows, &diagnosis);
    if (diagnosis.verdict == DiagnosisVerdict::kAmbiguous) {
      for (const Explanation& explanation : diagnosis.explanations) {
        for (const std::string& id : explanation.faults) AskForWhatShows(id, &diagnosis);
      }
    }
    SayWhatIsHidden(&diagnosis);
    return diagnosis;
  }

  // Of the explanation that was found, else of the nearest correct formula.
  size_t ConventionOf(const Diagnosis& diagnosis) const {
    const std::vector<std::string> faults = diagnosis.explanations.empty()
                                                ? std::vector<std::string>()
                                                : diagnosis.explanations.front().faults;
    const Tried* found = nullptr;
    for (const Tried& tried : tried_) {
      if (tried.explanation.faults != faults) continue;
      if (found == nullptr || tried.explanation.residual < found->explanation.residual) {
        found = &tried;
      }
    }
    return found->convention;
  }

  void AskForWhatShows(const std::string& id, Diagnosis* diagnosis) const {
    for (const Deviation<Choices>& deviation : r_.deviations) {
      if (deviation.id != id || deviation.needs.empty()) continue;
      std::vector<std::string>& asked = diagnosis->ask_for;
      if (std::find(asked.begin(), asked.end(), deviation.needs) != asked.end()) continue;
      asked.push_back(deviation.needs);
    }
  }

  // Faults all of whose variants change nothing here.
  void SayWhatIsHidden(Diagnosis* diagnosis) const {
    std::map<std::string, std::vector<std::string>> hidden;
    for (size_t d = 0; d < r_.deviations.size(); ++d) {
      const Deviation<Choices>& deviation = r_.deviations[d];
      const std::string& id = deviation.id;
      const bool shows = std::any_of(tried_.begin(), tried_.end(), [&](const Tried& tried) {
        const std::vector<std::string>& faults = tried.explanation.faults;
        return faults.size() == 1 && faults.front() == id;
      });
      std::vector<std::string>& ids = hidden[deviation.needs];
      if (shows || deviation.needs.empty()) continue;
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    for (const auto& [needs, ids] : hidden) {
      if (ids.empty()) continue;
      if (diagnosis->verdict == DiagnosisVerdict::kCorrect) {
        diagnosis->ask_for.push_back(needs);
      }
      std::string names;
      for (const std::string& id : ids) names += (names.empty() ? "" : ", ") + id;
      diagnosis->seen.push_back("not visible in these tensors: " + names + "; it takes " + needs);
    }
  }

  const Replayer<Choices>& r_;
  const std::vector<Reading<Choices>>& conventions_;
  std::vector<Outputs> right_;  // by convention
  std::vector<Tried> tried_;
  std::vector<Extended> aside_;
  std::vector<size_t> idle_;  // deviations that change nothing
};

}  // namespace heed
