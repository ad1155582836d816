#include "verify/diagnose/attention_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tensor/convert.h"

namespace heed {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Multiply-adds after which no further search is begun: some seconds.
constexpr double kBudget = 8e9;

using Numbers = std::vector<double>;

Numbers StoredAs(DType dtype, const Numbers& values) {
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
  Numbers stored(values.size());
  Encode(dtype, values.data(), values.size(), bytes.data());
  Decode(dtype, bytes.data(), values.size(), stored.data());
  return stored;
}

// ------------------------------------------------------------------ fits

struct Minimum {
  double at = 0, value = kInfinity;
};

// The smallest value of `f` near the best point of an ascending grid, by golden sections. `enough`:
// a value that is worth refining to the end.
template <class F>
Minimum Minimise(const FittedFault& fit, double enough, F f) {
  size_t best = 0;
  Minimum found;
  for (size_t i = 0; i < fit.grid.size(); ++i) {
    const double value = f(fit.grid[i]);
    if (value < found.value) found = {fit.grid[i], value};
    if (found.at == fit.grid[i]) best = i;
  }
  if (fit.whole) return found;
  constexpr double kGolden = 0.6180339887498949;
  double low = fit.grid[best > 0 ? best - 1 : 0];
  double high = fit.grid[std::min(best + 1, fit.grid.size() - 1)];
  double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
  double at_a = f(a), at_b = f(b);
  for (int step = 0; step < 60; ++step) {
    const bool left = at_a < at_b;
    if (left) {
      high = b;
      b = std::exchange(a, b - kGolden * (b - low));
      at_b = at_a;
      at_a = f(a);
    } else {
      low = a;
      a = std::exchange(b, a + kGolden * (high - a));
      at_a = at_b;
      at_b = f(b);
    }
    const Minimum now = at_a < at_b ? Minimum{a, at_a} : Minimum{b, at_b};
    if (now.value < found.value) found = now;
    if (step == 12 && found.value > enough) break;
  }
  return found;
}

double RoundedTo(int digits, double value) {
  if (value == 0) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(value))) + 1 - digits);
  return std::round(value / unit) * unit;
}

}  // namespace

std::vector<std::string> NamesOf(const AttentionHypothesis& hypothesis) {
  std::vector<std::string> names;
  for (const size_t fault : hypothesis.faults) {
    names.emplace_back(AttentionFaultTable()[fault].kind.id);
  }
  std::ranges::sort(names);
  return names;
}

// ------------------------------------------------------------------ residuals

AttentionSearch::AttentionSearch(const AttentionDump& dump)
    : dump_(dump), replay_(dump.attention, dump.context), conventions_(AttentionConventions(dump)) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    rough_.emplace_back(dump.attention, dump.context, Perturbation{Unit(), seed});
  }
  double largest = 0;
  for (const double score : *replay_.Tensor(conventions_[0].right, Stage::kScores)) {
    largest = std::max(largest, std::abs(score));
  }
  for (AttentionConvention& convention : conventions_) convention.facts.largest_score = largest;
  // A case may be replayed before anybody's results are known.
  if (dump_.theirs.empty()) return;
  compared_.resize(dump_.theirs.size());
  const int64_t equal = EqualRowsFromFirst();
  for (AttentionConvention& convention : conventions_) convention.facts.equal_rows = equal;
  if (SeemsToHoldInput()) AddInputConvention();
}

// Of the last of their tensors, under the first convention.
int64_t AttentionSearch::EqualRowsFromFirst() {
  const TheirTensor& last = dump_.theirs.back();
  const size_t rank = last.shape.size();
  const int64_t T = last.shape[rank - 2], width = last.shape[rank - 1];
  const auto ours = replay_.Tensor(conventions_[0].right, last.stage);
  const std::vector<int64_t> rows =
      EqualRows(last.values, *ours, static_cast<int64_t>(last.values.size()) / (T * width), T,
                width, 4 * NoiseFloorOf(dump_.output, dump_.coarsest).arithmetic);
  int64_t equal = 0;
  while (equal < static_cast<int64_t>(rows.size()) && rows[equal] == equal) ++equal;
  return equal;
}

// Whether y lies nearer to x + attention: what is left of it points along x, once.
bool AttentionSearch::SeemsToHoldInput() {
  const TheirTensor& last = dump_.theirs.back();
  const Numbers& x = dump_.attention.x;
  if (last.stage != Stage::kY || last.values.size() != x.size()) return false;
  const auto ours = replay_.Tensor(conventions_[0].right, Stage::kY);
  double along = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double rest = last.values[i] - (*ours)[i];
    along += rest * x[i];
    // Rows of padding are 0 in both.
    if (rest != 0) size += x[i] * x[i];
  }
  return along > 0.5 * size && along < 1.5 * size;
}

void AttentionSearch::AddInputConvention() {
  const size_t count = conventions_.size();
  for (size_t i = 0; i < count; ++i) {
    conventions_[i].texts["y"] = "attention alone";
    AttentionConvention with = conventions_[i];
    with.right.combine.plus_input = true;
    with.texts["y"] = "x + attention";
    conventions_.push_back(std::move(with));
  }
}

double AttentionSearch::ResidualOf(const AttentionRecipe& recipe, const TheirTensor& tensor) {
  const auto ours = replay_.Tensor(recipe, tensor.stage);
  double residual = Residual(tensor.values, *ours);
  if (tensor.stage != Stage::kScores || !(residual > 0)) return residual;
  // A constant that swamps the scores leaves none that could be saved behind the mask.
  if (recipe.mask.hidden == HiddenAs::kSwamped) return residual;
  // Scores may have been saved behind the mask.
  Numbers masked = replay_.MaskedScores(recipe);
  BlankPadding(dump_.attention, dump_.context, tensor.stage, &masked);
  return std::min(residual, Residual(tensor.values, masked));
}

double AttentionSearch::ResidualOf(const AttentionRecipe& recipe) {
  double residual = 0;
  for (const TheirTensor& tensor : dump_.theirs) {
    residual = std::max(residual, ResidualOf(recipe, tensor));
  }
  return residual;
}

double AttentionSearch::RoundedResidualOf(const AttentionRecipe& recipe) {
  double rounded = 0;
  for (const TheirTensor& tensor : dump_.theirs) {
    // Scores may be saved before the mask or behind it.
    if (tensor.stage == Stage::kScores && dump_.theirs.size() > 1) continue;
    const Numbers ours = StoredAs(tensor.dtype, *replay_.Tensor(recipe, tensor.stage));
    rounded = std::max(rounded, Residual(tensor.values, ours));
  }
  return rounded;
}

// The position at which theirs depart most from `right` and the last one: enough to see that most
// recipes are hopeless.
void AttentionSearch::ChooseRows(const AttentionRecipe& right) {
  constexpr int64_t kWorthIt = 8;
  const TheirTensor& last = dump_.theirs.back();
  const size_t rank = last.shape.size();
  const int64_t T = last.shape[rank - 2], width = last.shape[rank - 1];
  if (T < kWorthIt) return;
  const auto ours = replay_.Tensor(right, last.stage);
  std::vector<double> errors(T);
  for (size_t i = 0; i < last.values.size(); ++i) {
    const double error = Distance(last.values[i], (*ours)[i]);
    errors[static_cast<int64_t>(i) / width % T] += error * error;
  }
  const int64_t most = std::ranges::max_element(errors) - errors.begin();
  std::vector<int64_t> rows = {most, most == T - 1 ? T / 2 : T - 1};
  for (const TheirTensor& tensor : dump_.theirs) {
    looked_at_.push_back(RowsAt(rows, T, tensor.shape.back(), tensor.values));
    sizes_.push_back(EuclideanNorm(tensor.values));
  }
  replay_.LookAt(std::move(rows));
}

// `to_the_end`: also behind a tensor that rules the recipe out.
AttentionSearch::Glance AttentionSearch::GlanceAt(const AttentionRecipe& recipe, bool to_the_end) {
  const double floor = NoiseFloorOf(dump_.output, dump_.coarsest).arithmetic;
  Glance glance;
  for (size_t i = 0; i < dump_.theirs.size(); ++i) {
    const TheirTensor& tensor = dump_.theirs[i];
    double residual = 0, least = 0;
    // Scores may have been saved behind the mask.
    const bool few = !looked_at_.empty() && tensor.stage != Stage::kScores;
    if (const auto ours = few ? replay_.Glance(recipe, tensor.stage) : nullptr) {
      residual = Residual(looked_at_[i], *ours);
      least = LeastResidual(looked_at_[i], *ours, sizes_[i]);
    } else if (tensor.stage < Stage::kScores) {
      // Most recipes share it with the one before.
      const auto same = replay_.Tensor(recipe, tensor.stage);
      if (compared_[i].first != same) compared_[i] = {same, Residual(tensor.values, *same)};
      residual = least = compared_[i].second;
    } else {
      residual = least = ResidualOf(recipe, tensor);
    }
    if (residual <= floor && glance.residual <= floor) ++glance.reproduced;
    glance.residual = std::max(glance.residual, residual);
    glance.least = std::max(glance.least, least);
    if (!to_the_end && glance.least > MostFloor()) break;
  }
  return glance;
}

// Of what seems hopeless, that of the glance.
double AttentionSearch::ResidualBehind(const Glance& glance, const AttentionRecipe& recipe) {
  return glance.least > MostFloor() ? glance.residual : ResidualOf(recipe);
}

void AttentionSearch::Judge(AttentionHypothesis* hypothesis) {
  const Glance glance = GlanceAt(hypothesis->recipe, false);
  hypothesis->reproduced = glance.reproduced;
  hypothesis->residual = ResidualBehind(glance, hypothesis->recipe);
}

NoiseFloor AttentionSearch::FloorOf(const AttentionRecipe& recipe) {
  NoiseFloor floor = NoiseFloorOf(dump_.output, dump_.coarsest);
  double perturbed = 0;
  for (AttentionReplay& rough : rough_) {
    for (const TheirTensor& tensor : dump_.theirs) {
      const double residual =
          Residual(*rough.Tensor(recipe, tensor.stage), *replay_.Tensor(recipe, tensor.stage));
      if (std::isfinite(residual)) perturbed = std::max(perturbed, residual);
    }
  }
  floor.arithmetic = std::max(floor.arithmetic, std::min(3 * perturbed, MostFloor()));
  return floor;
}

double AttentionSearch::Unit() const {
  return std::max(UnitRoundoff(dump_.coarsest), UnitRoundoff(DType::kF32));
}

// Sharp softmaxes amplify rounding, but nothing is proven by a floor of several percent.
double AttentionSearch::MostFloor() const { return std::max(20 * Unit(), 1e-4); }

bool AttentionSearch::Explains(const AttentionHypothesis& hypothesis) {
  const NoiseFloor typical = NoiseFloorOf(dump_.output, dump_.coarsest);
  if (hypothesis.residual <= typical.arithmetic) return true;
  return hypothesis.residual <= MostFloor() &&
         hypothesis.residual <= FloorOf(hypothesis.recipe).arithmetic;
}

bool AttentionSearch::WithinBudget() const { return replay_.work() < kBudget; }

// ------------------------------------------------------------------ the search

std::vector<AttentionHypothesis> AttentionSearch::Singles(size_t convention) {
  const AttentionConvention& under = conventions_[convention];
  std::vector<AttentionHypothesis> singles;
  const std::span<const AttentionFault> table = AttentionFaultTable();
  for (size_t fault = 0; fault < table.size(); ++fault) {
    if (table[fault].variants == nullptr) continue;
    for (Variant& variant : table[fault].variants(under.facts)) {
      AttentionHypothesis single{.faults = {fault},
                                 .changes = {std::move(variant.change)},
                                 .detail = std::move(variant.detail),
                                 .convention = convention,
                                 .recipe = under.right};
      single.changes[0](&single.recipe);
      if (single.recipe == under.right) continue;
      Judge(&single);
      singles.push_back(std::move(single));
    }
  }
  return singles;
}

AttentionHypothesis AttentionSearch::Fit(const AttentionHypothesis& base, size_t fault,
                                         const FittedFault& fit) {
  const auto with = [&](double number) {
    AttentionRecipe recipe = base.recipe;
    fit.change(number, &recipe);
    return recipe;
  };
  Minimum found = Minimise(fit, 0.3 * std::min(base.residual, 1.0), [&](double number) {
    return ResidualBehind(GlanceAt(with(number), true), with(number));
  });
  AttentionHypothesis fitted = base;
  fitted.faults.push_back(fault);
  fitted.residual = kInfinity;
  // Where nothing is comparable, no number is better than another.
  if (!std::isfinite(found.value) || found.value > MostFloor()) return fitted;
  // A round number is likelier, where it does no harm.
  for (int digits = 4; digits > 0; --digits) {
    const double round = RoundedTo(digits, found.at);
    const double residual = ResidualOf(with(round));
    if (residual <= 1.1 * found.value + 1e-9) found = {round, residual};
  }
  fitted.residual = fit.belongs(found.at) ? found.value : kInfinity;
  fitted.recipe = with(found.at);
  AttentionRecipe other_order = conventions_[base.convention].right;
  fit.change(found.at, &other_order);
  for (const Change& change : base.changes) change(&other_order);
  if (other_order != fitted.recipe) fitted.residual = kInfinity;
  fitted.fitted = !fit.whole;
  fitted.changes.push_back(
      [change = fit.change, at = found.at](AttentionRecipe* r) { change(at, r); });
  fitted.detail += (fitted.detail.empty() ? "" : "; ") + fit.detail(found.at);
  return fitted;
}

// Each of `bases` with each fault that has a number.
std::vector<AttentionHypothesis> AttentionSearch::Fitted(
    const std::vector<AttentionHypothesis>& bases) {
  std::vector<AttentionHypothesis> fitted;
  const std::span<const AttentionFault> table = AttentionFaultTable();
  for (const AttentionHypothesis& base : bases) {
    // The last ones of the table are the likeliest, and a large layer leaves time for few.
    for (size_t fault = table.size(); fault-- > 0;) {
      if (table[fault].fits == nullptr || std::ranges::count(base.faults, fault) > 0) continue;
      for (const FittedFault& fit : table[fault].fits(conventions_[base.convention].facts)) {
        if (!WithinBudget()) return fitted;
        fitted.push_back(Fit(base, fault, fit));
      }
    }
  }
  return fitted;
}

// Each of `bases` with each single fault that goes with it.
std::vector<AttentionHypothesis> AttentionSearch::Extended(
    const std::vector<AttentionHypothesis>& bases,
    const std::vector<AttentionHypothesis>& singles) {
  std::vector<AttentionHypothesis> extended;
  for (const AttentionHypothesis& base : bases) {
    for (const AttentionHypothesis& single : singles) {
      // Each pair once. Of three, any two may be those that come near.
      const bool again = base.faults.size() == 1 && single.faults[0] < base.faults[0];
      const bool has = std::ranges::count(base.faults, single.faults[0]) > 0;
      if (again || has || !WithinBudget()) continue;
      AttentionHypothesis both = base;
      single.changes[0](&both.recipe);
      AttentionRecipe other_order = single.recipe;
      for (const Change& change : base.changes) change(&other_order);
      // Two that make the same choice differently do not go together.
      if (both.recipe != other_order || both.recipe == base.recipe ||
          both.recipe == single.recipe) {
        continue;
      }
      both.faults.push_back(single.faults[0]);
      both.changes.push_back(single.changes[0]);
      if (!single.detail.empty()) both.detail += (both.detail.empty() ? "" : "; ") + single.detail;
      Judge(&both);
      extended.push_back(std::move(both));
    }
  }
  return extended;
}

// The best of them: those that reproduce more of the given tensors from the front, then by
// residual.
std::vector<AttentionHypothesis> AttentionSearch::Promising(std::vector<AttentionHypothesis> all,
                                                            size_t count) {
  std::vector<std::pair<std::pair<int64_t, double>, size_t>> order;
  for (size_t i = 0; i < all.size(); ++i) {
    order.push_back({{-all[i].reproduced, all[i].residual}, i});
  }
  std::ranges::sort(order);
  std::vector<AttentionHypothesis> best;
  for (size_t i = 0; i < std::min(count, order.size()); ++i) {
    best.push_back(std::move(all[order[i].second]));
  }
  return best;
}

std::vector<AttentionRecipe> AttentionSearch::RecipesOf(
    const std::vector<std::string>& faults) const {
  const AttentionConvention& under = conventions_[0];
  std::vector<AttentionRecipe> recipes = {under.right};
  for (const std::string& id : faults) {
    std::vector<Change> changes;
    for (const AttentionFault& fault : AttentionFaultTable()) {
      if (fault.kind.id != id) continue;
      if (fault.variants != nullptr) {
        for (Variant& variant : fault.variants(under.facts)) {
          changes.push_back(std::move(variant.change));
        }
      }
      if (fault.fits == nullptr) continue;
      for (const FittedFault& fit : fault.fits(under.facts)) {
        for (const double number : fit.grid) {
          if (!fit.belongs(number)) continue;
          changes.push_back(
              [change = fit.change, number](AttentionRecipe* r) { change(number, r); });
        }
      }
    }
    std::vector<AttentionRecipe> changed;
    for (const AttentionRecipe& recipe : recipes) {
      for (const Change& change : changes) {
        changed.push_back(recipe);
        change(&changed.back());
      }
    }
    recipes = std::move(changed);
  }
  return recipes;
}

// Whether their tensors before `stage` are those of `recipe`.
bool AttentionSearch::ReproducesTo(Stage stage, const AttentionRecipe& recipe, double floor) {
  return std::ranges::all_of(dump_.theirs, [&](const TheirTensor& tensor) {
    return tensor.stage >= stage || ResidualOf(recipe, tensor) <= floor;
  });
}

// The faults that a solved dropout amounts to; false when it is none that could be meant.
bool AttentionSearch::NameDropout(AttentionDropout* dropout) const {
  const double gain = dropout->solved.gain, p = dump_.dropout;
  Explanation& named = dropout->explanation;
  named.faults = NamesOf(dropout->base);
  named.residual = dropout->solved.residual;
  named.detail = fmt::format("p = {:.3g} {}", p > 0 ? p : 1 - 1 / gain, dropout->solved.where);
  if (!dropout->base.detail.empty()) named.detail += "; " + dropout->base.detail;
  if (p == 0) {
    named.faults.emplace_back("dropout_live_in_eval");
  } else if (std::abs(gain * (1 - p) - 1) > 0.01) {
    if (std::abs(gain - 1) > 0.01 && std::abs(gain * p - 1) > 0.01) return false;
    named.faults.emplace_back("dropout_scaling_missing");
  }
  std::ranges::sort(named.faults);
  return true;
}

// Those of `bases` that dropout turns into theirs.
std::vector<AttentionDropout> AttentionSearch::Solved(const std::vector<AttentionHypothesis>& bases,
                                                      double floor, DropoutEffort effort) {
  std::vector<AttentionDropout> found;
  for (const AttentionHypothesis& base : bases) {
    if (!WithinBudget()) break;
    if (!ReproducesTo(Stage::kPattern, base.recipe, floor)) continue;
    std::optional<SolvedDropout> solved = SolveDropout(dump_, base.recipe, floor, &replay_, effort);
    if (!solved || !solved->plausible) continue;
    AttentionDropout dropout{base, std::move(*solved), {}};
    if (NameDropout(&dropout)) found.push_back(std::move(dropout));
  }
  return found;
}

// The right formulas and a few others of `bases`: a search by digits takes its time.
std::vector<AttentionHypothesis> AttentionSearch::LikeliestForDropout(
    const std::vector<AttentionHypothesis>& bases, double floor) {
  constexpr size_t kMost = 6;
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < bases.size(); ++i) {
    const auto likelihood = DropoutLikelihood(dump_, bases[i].recipe, floor, &replay_);
    if (!likelihood) continue;
    // Many faults change little, and are as likely as none.
    const bool right = bases[i].faults.empty();
    order.emplace_back(right ? -kInfinity : -*likelihood, i);
  }
  std::ranges::sort(order);
  std::vector<AttentionHypothesis> likeliest;
  for (size_t i = 0; i < std::min(kMost, order.size()); ++i) {
    likeliest.push_back(bases[order[i].second]);
  }
  return likeliest;
}

// Those of `bases` that solve most rows and make the others
// likeliest. A right formula stays unless it does clearly worse.
bool AttentionSearch::FindDropout(const std::vector<AttentionHypothesis>& bases, double floor) {
  // Logarithms of how many times likelier.
  constexpr double kAlike = 6, kClearly = 20;
  std::vector<AttentionDropout> found = Solved(bases, floor, DropoutEffort::kFewWeights);
  if (found.empty()) {
    found = Solved(LikeliestForDropout(bases, floor), floor, DropoutEffort::kManyWeights);
  }
  // Where the floor is high a wrong formula may solve one row more, but hardly as well.
  constexpr double kWorse = 3;
  int64_t most = 0;
  for (const AttentionDropout& dropout : found) most = std::max(most, dropout.solved.rows);
  double least = kInfinity;
  for (const AttentionDropout& dropout : found) {
    if (dropout.solved.rows >= most - 1) least = std::min(least, dropout.solved.residual);
  }
  std::erase_if(found, [least](const AttentionDropout& dropout) {
    return dropout.solved.residual > kWorse * least + 1e-12;
  });
  std::pair<int64_t, double> best = {0, -kInfinity};
  for (const AttentionDropout& dropout : found) {
    best = std::max(best, std::pair(dropout.solved.rows, dropout.solved.likelihood));
  }
  std::erase_if(found, [best](const AttentionDropout& dropout) {
    const double slack = dropout.base.faults.empty() ? kClearly : kAlike;
    return dropout.solved.rows < best.first || dropout.solved.likelihood < best.second - slack;
  });
  dropouts_ = std::move(found);
  return !dropouts_.empty();
}

std::vector<AttentionHypothesis> AttentionSearch::Run() {
  std::vector<AttentionHypothesis> tried;
  for (size_t c = 0; c < conventions_.size(); ++c) {
    const AttentionRecipe& right = conventions_[c].right;
    tried.push_back({.convention = c, .recipe = right, .residual = ResidualOf(right)});
  }
  // Conventions that come nearest first; the stated one wins ties.
  std::vector<AttentionHypothesis> rights = tried;
  std::ranges::stable_sort(rights, {}, &AttentionHypothesis::residual);
  const double nearest = rights[0].residual;
  // In 16 bits, small faults hide below the rounding; the same bits leave no room for them.
  const bool wide = UnitRoundoff(dump_.output) <= UnitRoundoff(DType::kF32);
  const bool exact = nearest <= NoiseFloorOf(dump_.output, dump_.coarsest).storage &&
                     (wide || RoundedResidualOf(rights[0].recipe) <= 0.05 * nearest);
  if (exact) return tried;
  const auto keep = [&](const std::vector<AttentionHypothesis>& found) {
    bool any = false;
    for (const AttentionHypothesis& hypothesis : found) {
      if (!Explains(hypothesis)) continue;
      any = true;
      tried.push_back(hypothesis);
    }
    return any;
  };
  ChooseRows(rights[0].recipe);
  std::vector<std::vector<AttentionHypothesis>> singles(conventions_.size());
  const bool right_fits = Explains(rights[0]);
  const std::vector<AttentionHypothesis> bases =
      right_fits ? std::vector<AttentionHypothesis>{rights[0]} : tried;
  for (const AttentionHypothesis& right : bases) {
    singles[right.convention] = Singles(right.convention);
    const bool found = keep(singles[right.convention]);
    // In 16 bits a neighbour of what was meant may stay within the noise.
    if ((!found || !wide) && keep(Fitted({right}))) return tried;
    if (found) return tried;
    if (!WithinBudget()) break;
  }
  // The right formula within the noise of computing needs no combination of faults, and numbers of
  // which none is finite, or all are 0, prove none.
  const bool comparable = std::ranges::any_of(
      dump_.theirs.back().values, [](double value) { return std::isfinite(value) && value != 0; });
  if (right_fits || !comparable) return tried;
  rights.resize(std::min<size_t>(rights.size(), 2));
  const double floor = FloorOf(rights[0].recipe).arithmetic;
  std::vector<AttentionHypothesis> bases_of_dropout = rights;
  const std::vector<AttentionHypothesis>& near = singles[rights[0].convention];
  bases_of_dropout.insert(bases_of_dropout.end(), near.begin(), near.end());
  if (FindDropout(bases_of_dropout, floor)) return tried;
  for (const AttentionHypothesis& right : rights) {
    const std::vector<AttentionHypothesis>& alone = singles[right.convention];
    const std::vector<AttentionHypothesis> pairs = Extended(alone, alone);
    if (keep(pairs)) return tried;
    const std::vector<AttentionHypothesis> nearest_pairs = Promising(pairs, 8);
    if (keep(Fitted(Promising(alone, 30))) || keep(Extended(nearest_pairs, alone)) ||
        keep(Fitted(nearest_pairs))) {
      return tried;
    }
  }
  return tried;
}

}  // namespace heed
