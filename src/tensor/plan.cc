#include "tensor/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "tensor/shape.h"

namespace heed {
namespace {

constexpr int64_t kAlignment = 16;  // floats in 64 bytes
// Beyond every machine; sums of such sizes still fit.
constexpr int64_t kTooMany = int64_t{1} << 44;

int64_t Padded(int64_t elements) { return (elements + kAlignment - 1) / kAlignment * kAlignment; }

int64_t Product(const std::vector<int64_t>& shape) {
  return std::min(ElementCount(shape).value_or(kTooMany), kTooMany);
}

}  // namespace

bool Plan::Keeps(Lifetime lifetime) const {
  switch (lifetime) {
    case Lifetime::kInput:
      return keep_ != Keep::kNothing;
    case Lifetime::kSaved:
      return keep_ == Keep::kAll;
    case Lifetime::kForward:
    case Lifetime::kScratch:
      return false;
  }
  return false;
}

int64_t PlannedTensor::elements() const { return Product(shape); }
int64_t DerivedTensor::elements() const { return Product(shape); }

void Plan::Add(float** data, const std::string& name, std::string_view key, std::string_view axes,
               std::vector<int64_t> shape, Lifetime lifetime) {
  targets_.push_back(data);
  Add({name, std::string(axes), std::move(shape), lifetime, 0}, key);
}

void Plan::Add(uint16_t** data, const std::string& name, std::string_view key,
               std::string_view axes, std::vector<int64_t> shape, Lifetime lifetime) {
  targets_.push_back(data);
  Add({name, std::string(axes), std::move(shape), lifetime, 0, DType::kBF16}, key);
}

void Plan::Add(PlannedTensor tensor, std::string_view key) {
  const int64_t per_float = sizeof(float) / SizeOf(tensor.dtype);
  const int64_t elements = Padded((tensor.elements() + per_float - 1) / per_float);
  const auto [entry, fresh] = shared_.try_emplace(
      Keeps(tensor.lifetime) ? tensor.name : std::string(key), block_elements_.size());
  if (fresh) block_elements_.push_back(0);
  tensor.block = entry->second;
  block_elements_[tensor.block] = std::max(block_elements_[tensor.block], elements);
  tensors_.push_back(std::move(tensor));
}

void Plan::AddView(const std::string& name, std::string_view axes, std::vector<int64_t> shape,
                   std::vector<int64_t> strides, int64_t offset) {
  derived_.push_back({name, std::string(axes), std::move(shape), std::move(strides),
                      tensors_.size() - 1, offset, tensors_.size()});
}

void Plan::AddUnheld(const std::string& name, std::string_view axes, std::vector<int64_t> shape) {
  derived_.push_back({name, std::string(axes), std::move(shape), {}, {}, 0, tensors_.size()});
}

size_t Plan::bytes() const {
  int64_t elements = 0;
  for (int64_t n : block_elements_) elements += n;
  return static_cast<size_t>(elements) * sizeof(float);
}

Status Plan::Allocate() {
  buffer_ = Buffer(bytes());
  if (buffer_.data() == nullptr && bytes() > 0) {
    return Fail(ErrorKind::kRequest, "memory",
                fmt::format("{:.1f} MiB of activations that the system does not give",
                            static_cast<double>(bytes()) / (1 << 20)),
                "", "use a smaller --batch-size or --block-size");
  }
  float* at = buffer_.floats();
  for (int64_t n : block_elements_) {
    starts_.push_back(at);
    at += n;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    float* start = starts_[tensors_[i].block];
    std::visit([&](auto** target) { *target = reinterpret_cast<decltype(*target)>(start); },
               targets_[i]);
  }
  return {};
}

}  // namespace heed
