#include "tensor/parameters.h"

#include <fmt/format.h>

namespace heed {
namespace {

constexpr int64_t kFloat = sizeof(float);

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
  block_elements_ += (p.elements + 15) / 16 * 16;
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
  Buffer& buffer = singles_.emplace_back();
  HEED_TRY(AllocateBlock(PackedBytes(type, p->K(), p->N()), "packed weights", &buffer));
  p->packed = {type, p->K(), p->N(), buffer.data()};
  return buffer.data();
}

void ParameterSet::Borrow(Parameter* p, const float* values) {
  p->values = values;
  p->data = nullptr;
}

Status ParameterSet::AllocateGradients() {
  if (has_gradients()) return {};
  HEED_TRY(AllocateBlock(block_elements_ * kFloat, "gradients", &gradients_));
  for (Parameter& p : parameters_) p.grad = gradients_.floats() + p.offset;
  return {};
}

Parameter* ParameterSet::Find(std::string_view name) {
  for (Parameter& p : parameters_) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

}  // namespace heed
