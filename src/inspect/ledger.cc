#include "inspect/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <unordered_map>

#include "base/plural.h"
#include "infer/cache.h"
#include "model/flops.h"

namespace heed {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kMostRows = int64_t{1} << 24;

int64_t SizeOf(CacheType type) { return type == CacheType::kF32 ? 4 : 2; }

Status CheckRequest(const ModelConfig& c, int64_t B, int64_t T) {
  if (B < 1 || B > kMostRows) {
    return BadRequest("--batch-size", fmt::format("{}", B), fmt::format("1 to {}", kMostRows));
  }
  if (T < 1 || T > c.block_size) {
    return BadRequest("--seq", fmt::format("{}", T), fmt::format("1 to {}", c.block_size),
                      "a sequence is at most block_size long");
  }
  // Generous bounds of the largest sums: floats of a training pass, and its operations.
  const double rows = static_cast<double>(B) * static_cast<double>(T);
  const double width = static_cast<double>(c.n_embd + c.n_inner + 3 * c.n_head * c.head_dim);
  const auto heads = static_cast<double>(c.n_head * T);
  const double layers = static_cast<double>(c.n_layer) * rows * (16 * width + 2 * heads);
  const double work = 6 * rows * static_cast<double>(ParameterCount(c)) +
                      12 * layers * static_cast<double>(c.head_dim);
  if (std::max(work, layers + rows * static_cast<double>(c.vocab_size)) > 0x1p60) {
    return BadRequest("--batch-size", fmt::format("{} sequence{} of {}", B, Plural(B), T),
                      "sizes whose work and memory stay below 2^60", "take smaller ones");
  }
  return {};
}

int64_t CacheElements(const ModelConfig& c, int64_t n_kv_head, int64_t B, int64_t T) {
  return 2 * c.n_layer * B * n_kv_head * T * c.head_dim;
}

// The memory of the tensors in `plan`, which is allocated, told by their addresses.
class MemoryMap {
 public:
  explicit MemoryMap(const Plan& plan) : plan_(plan) {
    for (size_t i = 0; i < plan.tensors().size(); ++i) first_.try_emplace(plan.data(i), i);
  }

  std::string OfPlanned(size_t i) const {
    const size_t first = first_.at(plan_.data(i));
    return first == i ? "own" : "reuses " + plan_.tensors()[first].name;
  }
  std::string OfDerived(const DerivedTensor& derived) const {
    if (!derived.of) return "never held";
    for (const DerivedTensor& earlier : plan_.derived()) {
      if (&earlier == &derived) break;
      if (earlier.of && Address(earlier) == Address(derived) &&
          earlier.strides == derived.strides && earlier.shape == derived.shape) {
        return "in place of " + earlier.name;
      }
    }
    const PlannedTensor& whole = plan_.tensors()[*derived.of];
    int64_t last = derived.offset;
    for (size_t axis = 0; axis < derived.shape.size(); ++axis) {
      last += (derived.shape[axis] - 1) * derived.strides[axis];
    }
    return last < whole.elements() ? "view of " + whole.name : "outside of " + whole.name;
  }

 private:
  const float* Address(const DerivedTensor& view) const {
    return plan_.data(*view.of) + view.offset;
  }

  const Plan& plan_;
  std::unordered_map<const float*, size_t> first_;  // the first tensor at each address
};

std::vector<LedgerTensor> ListTensors(const Plan& plan, const Plan& allocated,
                                      const std::unordered_map<std::string, int64_t>& flops) {
  const MemoryMap memory(allocated);
  std::vector<LedgerTensor> list;
  const auto add = [&](const auto& tensor, bool copy, std::string where) {
    const auto work = flops.find(tensor.name);
    list.push_back({tensor.name, tensor.axes, tensor.shape, tensor.elements(),
                    tensor.elements() * kFloat, work == flops.end() ? 0 : work->second, copy,
                    std::move(where)});
  };
  size_t next = 0;
  const auto add_derived = [&](size_t place) {
    for (; next < plan.derived().size() && plan.derived()[next].place <= place; ++next) {
      add(plan.derived()[next], false, memory.OfDerived(allocated.derived()[next]));
    }
  };
  for (size_t i = 0; i < plan.tensors().size(); ++i) {
    add_derived(i);
    add(plan.tensors()[i], true, memory.OfPlanned(i));
  }
  add_derived(plan.tensors().size());
  return list;
}

TrainingBytes PlanTraining(const Gpt& model, int64_t B, int64_t T, bool recompute = false) {
  const std::unique_ptr<Activations> activations =
      Activations::Outline(model, B, T, /*training=*/true, recompute);
  const Plan& plan = activations->plan();
  const int64_t block = model.parameters().block_elements() * kFloat;
  TrainingBytes bytes{block, block, 2 * block};
  for (const PlannedTensor& tensor : plan.tensors()) {
    if (plan.Keeps(tensor.lifetime)) bytes.saved += tensor.elements() * kFloat;
  }
  bytes.workspace = static_cast<int64_t>(plan.bytes()) - bytes.saved;
  return bytes;
}

// The largest size in [1, most] that fits, or 0. Memory grows with size.
template <class Fits>
int64_t LargestThatFits(int64_t most, const Fits& fits) {
  int64_t low = 0, high = most + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

// What makes training fit, the smallest change first: the same updates in smaller batches or with
// activations computed again, then a shorter sequence, then fewer layers. An update keeps its B
// sequences: batches are equal shares of them.
void ProposeChanges(const Gpt& model, Ledger* ledger) {
  const int64_t B = ledger->B, T = ledger->T, limit = ledger->machine.total;
  const auto largest_batch = [&](int64_t most, bool recompute) {
    int64_t batch = LargestThatFits(
        most, [&](int64_t b) { return PlanTraining(model, b, T, recompute).total() <= limit; });
    while (batch > 0 && B % batch != 0) --batch;
    return batch;
  };
  const auto batches = [&](int64_t batch) {
    return fmt::format("--batch-size {}", batch) +
           (batch < B ? fmt::format(" --grad-accum {}", B / batch) : "");
  };
  const int64_t kept = largest_batch(B - 1, false);
  const int64_t again = largest_batch(B, true);
  std::vector<std::string>& changes = ledger->changes;
  if (kept > 0) changes.push_back(batches(kept));
  if (again == B) {
    changes.emplace_back("--recompute");
  } else if (kept == 0 && again > 0) {
    changes.push_back(batches(again) + " --recompute");
  }
  ledger->same_updates = !changes.empty();
  if (ledger->same_updates) return;

  // The largest value at which one sequence fits; computing again only where it gains something.
  const auto smaller = [&](const char* flag, int64_t ModelConfig::*setting, int64_t most) {
    const auto largest = [&](bool recompute) {
      return LargestThatFits(most, [&](int64_t value) {
        ModelConfig config = model.config();
        config.*setting = value;
        const auto other = Gpt::Outline(config, model.kernels());
        return other &&
               PlanTraining(**other, 1, std::min(T, config.block_size), recompute).total() <= limit;
      });
    };
    const int64_t plain = largest(false), recomputed = largest(true);
    const int64_t value = std::max(plain, recomputed);
    if (value == 0) return false;
    changes.push_back(fmt::format("{} {} {}{}", batches(1), flag, value,
                                  recomputed > plain ? " --recompute" : ""));
    return true;
  };
  if (!smaller("--block-size", &ModelConfig::block_size, T - 1) &&
      !smaller("--n-layer", &ModelConfig::n_layer, model.config().n_layer - 1)) {
    changes.emplace_back("a narrower model: one layer of it does not fit");
  }
}

Result<std::vector<GroupingRow>> ListGroupings(const ModelConfig& config, const LedgerRequest& r) {
  std::vector<GroupingRow> rows;
  for (int64_t heads = config.n_head; heads >= 1; --heads) {
    if (config.n_head % heads != 0) continue;
    ModelConfig other = config;
    other.n_kv_head = heads;
    HEED_ASSIGN(const std::unique_ptr<Gpt> model, Gpt::Outline(other, SimdKernels()));
    const int64_t elements = CacheElements(config, heads, r.B, r.T);
    rows.push_back({heads,
                    heads == config.n_head ? "MHA"
                    : heads == 1           ? "MQA"
                                           : "GQA",
                    elements, elements * SizeOf(r.cache_type), model->parameters().elements()});
  }
  return rows;
}

}  // namespace

std::span<const EnumName<CacheType>> EnumNames(CacheType) {
  static constexpr EnumName<CacheType> kNames[] = {
      {CacheType::kF32, "f32"}, {CacheType::kF16, "f16"}, {CacheType::kBF16, "bf16"}};
  return kNames;
}

Result<Ledger> MakeLedger(const LedgerRequest& request, const MachineMemory& machine) {
  HEED_ASSIGN(const std::unique_ptr<Gpt> model, Gpt::Outline(request.model, SimdKernels()));
  const int64_t B = request.B, T = request.T;
  HEED_TRY(CheckRequest(model->config(), B, T));
  Ledger ledger;
  ledger.config = model->config();
  ledger.B = B;
  ledger.T = T;
  const ModelConfig& c = ledger.config;

  const std::unique_ptr<Activations> pass = Activations::Outline(*model, B, T, /*training=*/false);
  // Memory that is not touched costs nothing. Where the system refuses even that, a pass over one
  // position shows the same layout.
  Result<std::unique_ptr<Activations>> real = Activations::Create(*model, B, T, /*training=*/false);
  if (!real) real = Activations::Create(*model, 1, 1, /*training=*/false);
  if (!real) return tl::make_unexpected(real.error());
  ledger.tensors = ListTensors(pass->plan(), (*real)->plan(), ForwardFlops(*model, B, T));
  ledger.activation_bytes = static_cast<int64_t>(pass->plan().bytes());
  ledger.parameters.assign(model->parameters().all().begin(), model->parameters().all().end());
  ledger.parameter_count = model->parameters().elements();

  ledger.cache_type = request.cache_type;
  ledger.cache_elements = CacheElements(c, c.n_kv_head, B, T);
  ledger.cache_bytes = ledger.cache_elements * SizeOf(request.cache_type);
  ledger.cache_elements_mha = CacheElements(c, c.n_head, B, T);
  if (const auto cache = KvCache::Create(c, B, T)) {
    ledger.measured_cache_bytes = static_cast<int64_t>((*cache)->bytes());
  }
  HEED_ASSIGN(ledger.groupings, ListGroupings(c, request));

  ledger.flops_forward = TotalForwardFlops(*model, B, T);
  ledger.flops_training_step = TrainingStepFlops(*model, B, T);
  ledger.training = PlanTraining(*model, B, T);
  ledger.recompute_bytes = PlanTraining(*model, B, T, /*recompute=*/true).total();
  ledger.machine = machine;
  ledger.fits = ledger.training.total() <= machine.total;
  if (!ledger.fits) ProposeChanges(*model, &ledger);
  return ledger;
}

}  // namespace heed
