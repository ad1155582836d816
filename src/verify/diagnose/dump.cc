#include "verify/diagnose/dump.h"

#include <fmt/format.h>

#include <cmath>

#include "base/quote.h"
#include "tensor/shape.h"

namespace heed {
namespace {

std::string IndexText(int64_t flat, const std::vector<int64_t>& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return ShapeText(index);
}

}  // namespace

Dump::Dump(const TensorFile& file, const std::string& where, const SettingTexts& given)
    : file_(file), where_(where), texts_(given) {
  texts_.insert(file.settings().begin(), file.settings().end());
}

Result<Observed> Dump::Floats(const std::string& name, bool any) {
  HEED_ASSIGN(const TensorEntry* entry, RequireEntry(file_.tensors(), name, where_));
  Observed tensor{name, entry->shape, {}, entry->dtype};
  HEED_ASSIGN(tensor.values, file_.Doubles(name));
  if (tensor.values.empty()) return ShapeError(name, "every size at least 1");
  if (!any) HEED_TRY(CheckFinite(tensor));
  tensor.dtype = EffectiveDType(entry->dtype, tensor.values);
  const DType both[] = {coarsest_, tensor.dtype};
  coarsest_ = CoarsestOf(both);
  return tensor;
}

Result<Observed> Dump::Floats(const std::string& name, const std::vector<int64_t>& shape,
                              const char* axes, bool any) {
  HEED_ASSIGN(Observed tensor, Floats(name, any));
  if (tensor.shape != shape) return ShapeError(name, std::string(axes) + " = " + ShapeText(shape));
  return tensor;
}

Status Dump::CheckFinite(const Observed& tensor) const {
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    if (std::isfinite(tensor.values[i])) continue;
    return Fail(
        ErrorKind::kFormat, where_ + ": tensor " + Quoted(tensor.name),
        fmt::format("{} at {}", tensor.values[i], IndexText(static_cast<int64_t>(i), tensor.shape)),
        "finite numbers");
  }
  return {};
}

Result<std::vector<int64_t>> Dump::Integers(const std::string& name, int64_t least,
                                            int64_t most) const {
  HEED_ASSIGN(const TensorEntry* entry, RequireEntry(file_.tensors(), name, where_));
  HEED_ASSIGN(std::vector<int64_t> values, file_.Integers(name));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= least && values[i] <= most) continue;
    return Fail(
        ErrorKind::kFormat, where_ + ": tensor " + Quoted(name),
        fmt::format("{} at {}", values[i], IndexText(static_cast<int64_t>(i), entry->shape)),
        // Of labels any number below 0 is ignored.
        least < -most - 1 ? fmt::format("at most {}", most) : fmt::format("{} to {}", least, most));
  }
  return values;
}

tl::unexpected<Error> Dump::ShapeError(const std::string& name, const std::string& expected,
                                       const std::string& hint) const {
  return Fail(ErrorKind::kFormat, where_ + ": tensor " + Quoted(name),
              ShapeText(file_.Find(name)->shape), expected, hint);
}

}  // namespace heed
