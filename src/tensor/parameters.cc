#include "tensor/parameters.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/aside.h"
#include "base/mapped_file.h"
#include "base/parallel.h"

namespace heed {
namespace {

constexpr int64_t kFloat = sizeof(float);
// Packed factors lie side by side in blocks of at least this size, so that all get huge pages.
constexpr size_t kArena = size_t{32} << 20;
constexpr int64_t kAlignment = 64;
constexpr int64_t kPanelsAtOnce = 256;
constexpr size_t kPagesAtOnce = size_t{4} << 20;  // bytes of a file that a core maps at once

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Floats of a parameter in a block of them: whole cache lines.
int64_t BlockElements(const Parameter& p) { return RoundUp(p.elements, 16); }

Status AllocateBlock(int64_t size, const char* what, Buffer* block) {
  const auto bytes = static_cast<size_t>(size);
  *block = Buffer(bytes);
  if (block->data() != nullptr || bytes == 0) return {};
  return Fail(ErrorKind::kRequest, "memory",
              fmt::format("{:.1f} MiB of {} that the system does not give",
                          static_cast<double>(bytes) / (1 << 20), what),
              "", "use a smaller model");
}

}  // namespace

Parameter* ParameterSet::Add(std::string name, std::string axes, std::vector<int64_t> shape,
                             Init init) {
  Parameter p{name, name, std::move(axes), std::move(shape), init, 1, block_elements_};
  for (int64_t size : p.shape) p.elements *= size;
  elements_ += p.elements;
  block_elements_ += BlockElements(p);
  return &parameters_.emplace_back(std::move(p));
}

Status ParameterSet::Allocate() {
  HEED_TRY(AllocateBlock(block_elements_ * kFloat, "parameters", &values_));
  for (Parameter& p : parameters_) p.values = p.data = values_.floats() + p.offset;
  return {};
}

Status ParameterSet::Allocate(Parameter* p) {
  HEED_TRY(AllocateBlock(p->elements * kFloat, "parameters", &singles_.emplace_back()));
  p->values = p->data = singles_.back().floats();
  return {};
}

Result<std::byte*> ParameterSet::AllocatePacked(Parameter* p, BlockType type) {
  const auto bytes = static_cast<size_t>(RoundUp(PackedBytes(type, p->K(), p->N()), kAlignment));
  if (arenas_.empty() || arenas_.back().size() - arena_used_ < bytes) {
    HEED_TRY(AllocateBlock(static_cast<int64_t>(std::max(bytes, kArena)), "packed weights",
                           &arenas_.emplace_back()));
    arena_used_ = 0;
  }
  std::byte* packed = arenas_.back().data() + arena_used_;
  arena_used_ += bytes;
  p->packed = {type, p->K(), p->N(), packed};
  return packed;
}

Status ParameterSet::PackWaiting() {
  for (Parameter& p : parameters_) {
    if (!p.packed.waits()) continue;
    const PackedB stored = p.packed;
    const auto release = [rows = PackedB{stored.type, stored.K, stored.N, nullptr, stored.rows}](
                             int64_t begin, int64_t end) {
      ReleaseRead({rows.Row(begin), rows.Row(std::min(rows.N, end))});
    };
    HEED_ASSIGN(std::byte * packed, AllocatePacked(&p, stored.type));
    for (int64_t begin = 0; begin < stored.panels(); begin += kPanelsAtOnce) {
      const int64_t end = std::min(stored.panels(), begin + kPanelsAtOnce);
      PackPanels(stored, begin, end, packed);
      if (stored.order.empty()) release(begin * kPanelColumns, end * kPanelColumns);
    }
    if (!stored.order.empty()) release(0, stored.N);
  }
  return {};
}

void ParameterSet::Borrow(Parameter* p, const float* values) {
  p->values = values;
  p->data = nullptr;
}

void ParameterSet::UsePages(std::vector<std::span<const std::byte>> pages) {
  for (const std::span<const std::byte> part : pages) {
    for (size_t at = 0; at < part.size(); at += kPagesAtOnce) {
      pages_.push_back(part.subspan(at, std::min(kPagesAtOnce, part.size() - at)));
    }
  }
  // One thread of two leaves the other's core to whoever works aside: a vocabulary takes longer.
  const auto count = static_cast<int64_t>(pages_.size());
  int64_t alone = 0;
  while (alone < count && Aside::Running() > 0 && NumThreads() - Aside::Running() < 2) {
    PrepareToRead(pages_[alone++]);
  }
  ParallelFor(count - alone, [&](int64_t i) { PrepareToRead(pages_[alone + i]); });
}

ParameterSet::~ParameterSet() {
  ParallelFor(static_cast<int64_t>(pages_.size()), [&](int64_t i) { ReleaseRead(pages_[i]); });
}

Status ParameterSet::AllocateGradients(bool share_linear) {
  if (has_gradients()) return {};
  int64_t shared = 0, own = 0;
  for (Parameter& p : parameters_) {
    p.shares_grad = share_linear && p.linear();
    if (p.shares_grad) {
      shared = std::max(shared, BlockElements(p));
    } else {
      own += BlockElements(p);
    }
  }
  gradient_elements_ = shared + own;
  HEED_TRY(AllocateBlock(gradient_elements_ * kFloat, "gradients", &gradients_));
  float* at = gradients_.floats() + shared;
  for (Parameter& p : parameters_) {
    p.grad = p.shares_grad ? gradients_.floats() : at;
    if (!p.shares_grad) at += BlockElements(p);
  }
  return {};
}

Parameter* ParameterSet::Find(std::string_view name) {
  for (Parameter& p : parameters_) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

}  // namespace heed
