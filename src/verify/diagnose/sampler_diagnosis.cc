#include "verify/diagnose/sampler_diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tensor/shape.h"
#include "verify/diagnose/dump.h"
#include "verify/diagnose/replay.h"

namespace heed {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr FaultKind kFaults[] = {
    {"top_p_drops_crossing", "the token whose probability crosses top_p is removed",
     "keep every token whose cumulative probability before it is below top_p",
     "keep = cumulative - sorted_p < top_p", "keep = before < top_p; before += p[i];",
     "probabilities .5 .3 .15 .05 with top_p .6: one token is kept instead of two"},
    {"top_p_one_is_greedy", "nothing exceeds a top_p of 1, so the first token alone is kept",
     "leave the distribution alone when top_p is 1", "if top_p < 1: p = filter_top_p(p, top_p)",
     "if (top_p < 1) KeepTopP(top_p, &p);", "top_p 1 against 0.99999994"},
    {"top_p_ascending",
     "tokens are sorted from the least likely, so that likely ones or none are removed",
     "sort by falling probability", "sorted_p, order = p.sort(descending=True)",
     "std::sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });",
     "a sharp distribution: the likeliest token is gone"},
    {"sort_not_undone", "filtered probabilities are scattered back by the wrong index",
     "scatter sorted values by the sort's own order",
     "p = torch.zeros_like(p).scatter(-1, order, "
     "sorted_p)",
     "p[order[i]] = sorted[i];", "distinct logits, nothing filtered: p is permuted"},
    {"top_k_off_by_one", "k + 1 tokens are kept, or k - 1", "compare with the k-th largest logit",
     "logits[logits < logits.topk(k).values[..., -1:]] = -inf", "least = sorted[k - 1];",
     "top_k 1 is not greedy"},
    {"temperature_twice", "logits are divided by the temperature twice", "divide once",
     "p = torch.softmax(logits / temperature, -1)", "z[i] = logits[i] / temperature;",
     "temperature 2 gives what 4 should"},
    {"temperature_on_probabilities",
     "probabilities are divided by the temperature and put through "
     "softmax again",
     "divide the logits", "p = torch.softmax(logits / temperature, -1)",
     "z[i] = logits[i] / temperature;", "nearly uniform, at temperature 1 already"},
    {"temperature_zero", "temperature 0 is a division by zero, or is taken for none",
     "at temperature 0 take the largest logit",
     "token = logits.argmax(-1) if temperature == 0 else "
     "draw(logits / temperature)",
     "if (temperature == 0) return ArgMax(logits);",
     "temperature 0 must give the largest logit probability 1"},
    {"temperature_ignored", "the temperature has no effect", "divide the logits by it",
     "p = torch.softmax(logits / temperature, -1)", "z[i] = logits[i] / temperature;",
     "temperature 0.5 and 2 give the same"},
    {"temperature_inverted", "logits are multiplied by the temperature", "divide",
     "p = torch.softmax(logits / temperature, -1)", "z[i] = logits[i] / temperature;",
     "temperature 2 gives what 0.5 should"},
    {"repetition_penalty_sign",
     "the penalty divides negative logits too, which makes them likelier",
     "divide positive logits, multiply negative ones",
     "z[seen] = torch.where(z[seen] > 0, z[seen] / penalty, z[seen] * penalty)",
     "z = z > 0 ? z / penalty : z * penalty;", "one token that was seen, with logit -2"},
    {"repetition_penalty_per_occurrence", "a token is penalised as often as it occurred",
     "penalise each token that was seen once", "seen = torch.unique(previous)",
     "if (seen[token]) continue;", "a token twice in previous"},
    {"repetition_penalty_ignored", "the repetition penalty has no effect",
     "apply it to the logits of previous tokens", "z[previous] = penalise(z[previous], penalty)",
     "for (int32_t token : previous) Penalise(&z[token]);",
     "the logits of previous tokens alone differ"},
    {"filter_ignored", "a filter has no effect", "apply top_k, top_p and min_p before the draw",
     "p = filter_top_p(filter_top_k(p, k), top_p)", "KeepTopK(k, &z);",
     "tokens that should be at 0 are not"},
    {"probabilities_not_renormalised", "what a filter left is not scaled to sum to 1",
     "divide by the sum after each filter", "p = p / p.sum(-1, keepdim=True)",
     "for (double& x : p) x /= sum;", "the sum of the probabilities is below 1"},
};

enum class Temperature { kOnce, kTwice, kOnProbabilities, kIgnored, kInverted };
enum class Zero { kGreedy, kNan, kAsOne };
enum class TopP {
  kPlain,
  kIgnored,
  kDropCrossing,
  kDropReaching,
  kAscending,
  kAscendingDropped,
  kOneGreedy,
  kOneFirstToken,
};
enum class Sorted { kUndone, kLeftSorted, kGathered, kMaskSorted };
enum class Penalty { kPlain, kDividesAll, kPerOccurrence, kIgnored };
enum class Order { kTemperatureFirst, kTemperatureLast };

struct Choices {
  Temperature temperature = Temperature::kOnce;
  Zero zero = Zero::kGreedy;
  TopP top_p = TopP::kPlain;
  int64_t extra_k = 0;
  bool top_k = true, min_p = true;
  Sorted sorted = Sorted::kUndone;
  Penalty penalty = Penalty::kPlain;
  bool renormalised = true;
  Order order = Order::kTemperatureFirst;
};

struct SamplerCase {
  double temperature = 1, top_p = 1, min_p = 0, penalty = 1;
  int64_t top_k = 0;
  int64_t N = 1, V = 1;
  Observed logits, probabilities;
  std::vector<std::vector<int64_t>> previous;  // by row; or empty
};

void Normalise(std::vector<double>* p) {
  const double sum = std::accumulate(p->begin(), p->end(), 0.0);
  for (double& x : *p) x /= sum;
}

std::vector<double> Softmax(const std::vector<double>& z) {
  const double top = *std::max_element(z.begin(), z.end());
  std::vector<double> p(z.size());
  std::ranges::transform(z, p.begin(), [top](double x) { return std::exp(x - top); });
  Normalise(&p);
  return p;
}

// Indices by falling value, first of equals first.
std::vector<size_t> FallingOrder(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

// One row's way from logits to probabilities.
class Row {
 public:
  Row(const Choices& choices, const SamplerCase& c, int64_t row)
      : choices_(choices),
        case_(c),
        z_(c.logits.values.begin() + row * c.V, c.logits.values.begin() + (row + 1) * c.V) {
    if (!c.previous.empty()) Penalise(c.previous[row]);
  }

  std::vector<double> Probabilities() {
    if (case_.temperature == 0 && choices_.zero != Zero::kAsOne) return AtZero();
    const bool last = choices_.order == Order::kTemperatureLast;
    KeepTopK();
    if (!last) ApplyTemperature();
    std::vector<double> p = Softmax(z_);
    if (choices_.temperature == Temperature::kOnProbabilities) {
      for (size_t i = 0; i < p.size(); ++i)
        p[i] = z_[i] == -kInfinity ? -kInfinity : p[i] / Divisor();
      p = Softmax(p);
    }
    KeepTopP(&p);
    KeepMinP(&p);
    return last ? TemperedLast(p) : Unsorted(p);
  }

 private:
  double Divisor() const { return case_.temperature == 0 ? 1 : case_.temperature; }

  std::vector<double> AtZero() const {
    std::vector<double> p(z_.size(), choices_.zero == Zero::kNan ? std::nan("") : 0.0);
    if (choices_.zero == Zero::kGreedy) p[std::ranges::max_element(z_) - z_.begin()] = 1;
    return p;
  }

  void Penalise(const std::vector<int64_t>& previous) {
    if (choices_.penalty == Penalty::kIgnored) return;
    std::vector<bool> seen(z_.size());
    for (const int64_t token : previous) {
      if (token < 0) continue;
      if (seen[token] && choices_.penalty != Penalty::kPerOccurrence) continue;
      seen[token] = true;
      double& z = z_[token];
      z = z > 0 || choices_.penalty == Penalty::kDividesAll ? z / case_.penalty : z * case_.penalty;
    }
  }

  void ApplyTemperature() {
    const double divisor = Divisor();
    for (double& z : z_) {
      switch (choices_.temperature) {
        case Temperature::kOnce:
          z /= divisor;
          break;
        case Temperature::kTwice:
          z /= divisor * divisor;
          break;
        case Temperature::kInverted:
          z *= divisor;
          break;
        case Temperature::kOnProbabilities:
        case Temperature::kIgnored:
          break;
      }
    }
  }

  void KeepTopK() {
    const int64_t k = case_.top_k + choices_.extra_k;
    if (case_.top_k == 0 || !choices_.top_k || k < 1 || k >= case_.V) return;
    std::vector<double> sorted = z_;
    std::ranges::sort(sorted, std::greater<>());
    for (double& z : z_) {
      if (z < sorted[k - 1]) z = -kInfinity;
    }
  }

  // Which of the sorted tokens stay.
  std::vector<bool> Kept(const std::vector<double>& sorted) const {
    std::vector<bool> kept(sorted.size());
    double before = 0;
    for (size_t i = 0; i < sorted.size(); ++i) {
      const double with = before + sorted[i];
      switch (choices_.top_p) {
        case TopP::kDropCrossing:
        case TopP::kAscendingDropped:
          kept[i] = with <= case_.top_p;
          break;
        case TopP::kDropReaching:
          kept[i] = with < case_.top_p;
          break;
        default:
          kept[i] = before < case_.top_p;
      }
      before = with;
    }
    if (std::ranges::find(kept, true) == kept.end()) kept[0] = true;
    return kept;
  }

  void KeepTopP(std::vector<double>* p) {
    order_ = FallingOrder(*p);
    const bool first = choices_.top_p == TopP::kOneFirstToken;
    if (case_.top_p >= 1 && (first || choices_.top_p == TopP::kOneGreedy)) {
      const size_t kept = first ? 0 : order_[0];
      std::ranges::fill(*p, 0.0);
      (*p)[kept] = 1;
    }
    if (case_.top_p >= 1 || choices_.top_p == TopP::kIgnored) return;
    std::vector<size_t> order = order_;
    if (choices_.top_p == TopP::kAscending || choices_.top_p == TopP::kAscendingDropped) {
      std::ranges::reverse(order);
    }
    std::vector<double> sorted;
    for (const size_t i : order) sorted.push_back((*p)[i]);
    const std::vector<bool> kept = Kept(sorted);
    for (size_t i = 0; i < order.size(); ++i) {
      if (!kept[i]) (*p)[choices_.sorted == Sorted::kMaskSorted ? i : order[i]] = 0;
    }
    if (choices_.renormalised) Normalise(p);
  }

  void KeepMinP(std::vector<double>* p) const {
    if (case_.min_p == 0 || !choices_.min_p) return;
    const double least = case_.min_p * *std::ranges::max_element(*p);
    for (double& x : *p) {
      if (x < least) x = 0;
    }
    if (choices_.renormalised) Normalise(p);
  }

  // The temperature applied to what the filters left.
  std::vector<double> TemperedLast(const std::vector<double>& p) {
    for (size_t i = 0; i < p.size(); ++i) {
      if (p[i] == 0) z_[i] = -kInfinity;
    }
    ApplyTemperature();
    return Unsorted(Softmax(z_));
  }

  std::vector<double> Unsorted(std::vector<double> p) const {
    if (choices_.sorted != Sorted::kLeftSorted && choices_.sorted != Sorted::kGathered) return p;
    std::vector<double> out(p.size());
    for (size_t i = 0; i < p.size(); ++i) out[i] = p[order_[i]];
    if (choices_.sorted == Sorted::kLeftSorted) return out;
    std::vector<double> gathered(p.size());
    for (size_t i = 0; i < p.size(); ++i) gathered[i] = out[order_[i]];
    return gathered;
  }

  const Choices& choices_;
  const SamplerCase& case_;
  std::vector<double> z_;
  std::vector<size_t> order_;  // of the probabilities before top-p
};

Outputs Replay(const Choices& choices, const SamplerCase& c) {
  std::vector<double> all;
  for (int64_t row = 0; row < c.N; ++row) {
    const std::vector<double> p = Row(choices, c, row).Probabilities();
    all.insert(all.end(), p.begin(), p.end());
  }
  return {std::move(all)};
}

// What shows a fault that the settings at hand hide.
constexpr const char* kWarm = "probabilities at temperature 0.7";
constexpr const char* kCold = "probabilities at temperature 0";
constexpr const char* kNucleus = "probabilities with top_p 0.6";
constexpr const char* kFewer = "probabilities with top_k 3";
constexpr const char* kSeen = "probabilities with repetition_penalty 1.3 and previous ids";

std::vector<Deviation<Choices>> Deviations(const SamplerCase& sampler) {
  const auto temperature = [](Temperature value) {
    return [value](Choices* c) { c->temperature = value; };
  };
  const auto zero = [](Zero value) { return [value](Choices* c) { c->zero = value; }; };
  const auto top_p = [](TopP value) { return [value](Choices* c) { c->top_p = value; }; };
  const auto sorted = [](Sorted value) { return [value](Choices* c) { c->sorted = value; }; };
  const auto penalty = [](Penalty value) { return [value](Choices* c) { c->penalty = value; }; };
  std::vector<Deviation<Choices>> all = {
      {"top_p_drops_crossing", "top_p", top_p(TopP::kDropCrossing), kNucleus},
      {"top_p_drops_crossing", "top_p", top_p(TopP::kDropReaching), kNucleus},
      {"top_p_ascending", "top_p", top_p(TopP::kAscending), kNucleus},
      {"top_p_ascending", "top_p", top_p(TopP::kAscendingDropped), kNucleus},
      {"top_p_one_is_greedy", "top_p", top_p(TopP::kOneGreedy), "probabilities with top_p 1"},
      {"top_p_one_is_greedy", "top_p", top_p(TopP::kOneFirstToken), "probabilities with top_p 1",
       "token 0 alone"},
      {"sort_not_undone", "sorted", sorted(Sorted::kLeftSorted), "", "left in sorted order"},
      {"sort_not_undone", "sorted", sorted(Sorted::kGathered), "",
       "gathered where scatter belongs"},
      {"sort_not_undone", "sorted", sorted(Sorted::kMaskSorted), "",
       "the mask stays in sorted order"},
      {"top_k_off_by_one", "top_k", [](Choices* c) { c->extra_k = 1; }, kFewer, "k + 1"},
      {"temperature_twice", "temperature", temperature(Temperature::kTwice), kWarm},
      {"temperature_on_probabilities", "temperature", temperature(Temperature::kOnProbabilities),
       kWarm},
      {"temperature_ignored", "temperature", temperature(Temperature::kIgnored), kWarm},
      {"temperature_inverted", "temperature", temperature(Temperature::kInverted), kWarm},
      {"temperature_zero", "zero", zero(Zero::kNan), kCold, "not a number"},
      {"temperature_zero", "zero", zero(Zero::kAsOne), kCold, "as temperature 1"},
      {"repetition_penalty_sign", "penalty", penalty(Penalty::kDividesAll), kSeen},
      {"repetition_penalty_per_occurrence", "penalty", penalty(Penalty::kPerOccurrence), kSeen},
      {"repetition_penalty_ignored", "penalty", penalty(Penalty::kIgnored), kSeen},
      {"filter_ignored", "top_k", [](Choices* c) { c->top_k = false; }, kFewer, "top_k"},
      {"filter_ignored", "top_p", top_p(TopP::kIgnored), kNucleus, "top_p"},
      {"filter_ignored", "min_p", [](Choices* c) { c->min_p = false; }, "probabilities with min_p",
       "min_p"},
      {"probabilities_not_renormalised", "renormalised",
       [](Choices* c) { c->renormalised = false; }, kNucleus},
  };
  if (sampler.top_k > 1) {
    all.push_back(
        {"top_k_off_by_one", "top_k", [](Choices* c) { c->extra_k = -1; }, kFewer, "k - 1"});
  }
  return all;
}

Status ReadSettings(const Dump& dump, SamplerCase* c) {
  const auto number = [&](const char* name, double* value, double least, double most,
                          const char* expected) -> Status {
    HEED_ASSIGN(const std::optional<double> stated, dump.Setting<double>(name));
    if (!stated) return {};
    *value = *stated;
    if (*value >= least && *value <= most) return {};
    return BadRequest(dump.where() + ": " + name, fmt::format("{}", *value), expected);
  };
  HEED_TRY(number("temperature", &c->temperature, 0, 1e30, "a number from 0 (greedy)"));
  HEED_TRY(number("top_p", &c->top_p, 1e-300, 1, "a number in (0, 1]"));
  HEED_TRY(number("min_p", &c->min_p, 0, 1, "a number in [0, 1)"));
  HEED_TRY(number("repetition_penalty", &c->penalty, 1e-300, 1e300, "a number above 0"));
  HEED_ASSIGN(const std::optional<int64_t> top_k, dump.Setting<int64_t>("top_k"));
  c->top_k = top_k.value_or(0);
  if (c->top_k >= 0) return {};
  return BadRequest(dump.where() + ": top_k", fmt::format("{}", c->top_k),
                    "a whole number from 0 (all)");
}

Status ReadPrevious(const Dump& dump, SamplerCase* c) {
  if (!dump.Has("previous")) {
    if (c->penalty == 1) return {};
    return Fail(ErrorKind::kFormat, dump.where(), "no tensor previous beside repetition_penalty",
                "the ids so far, [n] or [N, n]");
  }
  HEED_ASSIGN(const std::vector<int64_t> ids, dump.Integers("previous", -1, c->V - 1));
  const std::vector<int64_t>& shape = dump.file().Find("previous")->shape;
  const bool by_row = shape.size() == 2;
  if (shape.size() > 2 || shape.empty() || (by_row && shape[0] != c->N)) {
    return dump.ShapeError("previous", fmt::format("[n] or [N, n] with N = {}", c->N));
  }
  const int64_t n = shape.back();
  for (int64_t row = 0; row < c->N; ++row) {
    const auto first = ids.begin() + (by_row ? row * n : 0);
    c->previous.emplace_back(first, first + n);
  }
  return {};
}

// -inf rules a token out; a row must leave one.
Status CheckLogits(const Dump& dump, const SamplerCase& c) {
  Observed finite = c.logits;
  for (double& z : finite.values) {
    if (z == -kInfinity) z = 0;
  }
  HEED_TRY(dump.CheckFinite(finite));
  for (int64_t row = 0; row < c.N; ++row) {
    const auto first = c.logits.values.begin() + row * c.V;
    if (*std::max_element(first, first + c.V) > -kInfinity) continue;
    return Fail(ErrorKind::kFormat, dump.where() + ": tensor logits",
                fmt::format("nothing but -inf in row {}", row), "a finite logit");
  }
  return {};
}

Result<SamplerCase> ReadCase(Dump* dump) {
  SamplerCase c;
  HEED_TRY(ReadSettings(*dump, &c));
  HEED_ASSIGN(c.logits, dump->Floats("logits", /*any=*/true));
  if (c.logits.shape.empty() || c.logits.shape.size() > 2) {
    return dump->ShapeError("logits", "[V] or [N, V]");
  }
  c.V = c.logits.shape.back();
  c.N = static_cast<int64_t>(c.logits.values.size()) / c.V;
  HEED_TRY(CheckLogits(*dump, c));
  HEED_ASSIGN(c.probabilities,
              dump->Floats("probabilities", c.logits.shape, "the shape of logits", /*any=*/true));
  HEED_TRY(ReadPrevious(*dump, &c));
  return c;
}

// All that a search needs; `c` is what the replayer reads.
Status Prepare(Dump* dump, SamplerCase* c, Replayer<Choices>* replayer,
               std::vector<Reading<Choices>>* conventions) {
  HEED_ASSIGN(*c, ReadCase(dump));
  conventions->resize(1);
  if (c->temperature != 1 && c->temperature != 0 && (c->top_p < 1 || c->min_p > 0)) {
    (*conventions)[0].names["order"] = "temperature before the filters";
    conventions->push_back((*conventions)[0]);
    (*conventions)[1].names["order"] = "temperature after the filters";
    (*conventions)[1].choices.order = Order::kTemperatureLast;
  }
  replayer->theirs = {c->probabilities};
  replayer->floor = NoiseFloorOf(c->probabilities.dtype, dump->coarsest());
  replayer->replay = [c](const Choices& choices) { return Replay(choices, *c); };
  replayer->deviations = Deviations(*c);
  return {};
}

}  // namespace

Result<Diagnosis> DiagnoseSampler(const TensorFile& file, const std::string& where,
                                  const SettingTexts& given) {
  Prepared<SamplerCase, Choices> p(file, where, given);
  HEED_TRY(p.By(Prepare));
  Diagnosis diagnosis = FaultSearch<Choices>(p.replayer, p.conventions).Run();
  if (diagnosis.verdict == DiagnosisVerdict::kUnexplained) {
    HEED_TRY(p.dump.CheckFinite(p.c.probabilities));
  }
  return diagnosis;
}

Result<std::optional<FaultView>> ViewSamplerFault(const TensorFile& file, const SettingTexts& given,
                                                  const std::string& id) {
  return Prepared<SamplerCase, Choices>::View(Prepare, file, given, id);
}

std::span<const FaultKind> SamplerFaults() { return kFaults; }

}  // namespace heed
