#include "io/tensor_entry.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/nearest.h"
#include "base/quote.h"
#include "tensor/convert.h"

namespace heed {
namespace {

// False when a number does not fit.
template <class Stored>
bool Widen(std::span<const std::byte> bytes, std::vector<int64_t>* out) {
  for (size_t i = 0; i < out->size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    if constexpr (sizeof(Stored) == 8 && std::is_unsigned_v<Stored>) {
      if (stored > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    }
    (*out)[i] = static_cast<int64_t>(stored);
  }
  return true;
}

bool WidenAll(DType dtype, std::span<const std::byte> bytes, std::vector<int64_t>* out) {
  switch (dtype) {
    case DType::kI64:
      return Widen<int64_t>(bytes, out);
    case DType::kI32:
      return Widen<int32_t>(bytes, out);
    case DType::kI16:
      return Widen<int16_t>(bytes, out);
    case DType::kI8:
      return Widen<int8_t>(bytes, out);
    case DType::kU64:
      return Widen<uint64_t>(bytes, out);
    case DType::kU32:
      return Widen<uint32_t>(bytes, out);
    case DType::kU16:
      return Widen<uint16_t>(bytes, out);
    default:
      return Widen<uint8_t>(bytes, out);
  }
}

}  // namespace

const TensorEntry* FindEntry(std::span<const TensorEntry> entries, std::string_view name) {
  const auto found = std::ranges::find(entries, name, &TensorEntry::name);
  return found == entries.end() ? nullptr : &*found;
}

Result<const TensorEntry*> RequireEntry(std::span<const TensorEntry> entries, std::string_view name,
                                        const std::string& where, const std::string& expected) {
  if (const TensorEntry* entry = FindEntry(entries, name)) return entry;
  std::vector<std::string> names;
  for (const TensorEntry& entry : entries) names.push_back(entry.name);
  // Any letter is near to another.
  const std::string nearest = name.size() > 1 ? NearestName(name, names) : "";
  std::string hint = "the nearest name is " + Quoted(nearest);
  if (nearest.empty()) {
    constexpr size_t kShown = 4;
    hint = names.empty() ? "" : "there is ";
    for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
      hint += (i == 0 ? "" : ", ") + Quoted(names[i]);
    }
    if (names.size() > kShown) hint += " and " + std::to_string(names.size() - kShown) + " more";
  }
  return Fail(ErrorKind::kFormat, where, "no tensor " + Quoted(name), expected, hint);
}

template <class T>
Result<std::vector<T>> DecodeFloats(const TensorEntry& entry, std::span<const std::byte> bytes,
                                    const std::string& where) {
  if (!IsFloat(entry.dtype)) {
    return Fail(ErrorKind::kFormat, where + ": tensor " + Quoted(entry.name),
                std::string(NameOf(entry.dtype)), "F64, F32, F16 or BF16");
  }
  std::vector<T> out(bytes.size() / SizeOf(entry.dtype));
  Decode(entry.dtype, bytes.data(), out.size(), out.data());
  return out;
}

template Result<std::vector<float>> DecodeFloats(const TensorEntry&, std::span<const std::byte>,
                                                 const std::string&);
template Result<std::vector<double>> DecodeFloats(const TensorEntry&, std::span<const std::byte>,
                                                  const std::string&);

Result<std::vector<int64_t>> DecodeIntegers(const TensorEntry& entry,
                                            std::span<const std::byte> bytes,
                                            const std::string& where) {
  const std::string tensor = where + ": tensor " + Quoted(entry.name);
  if (IsFloat(entry.dtype)) {
    return Fail(ErrorKind::kFormat, tensor, std::string(NameOf(entry.dtype)), "whole numbers");
  }
  std::vector<int64_t> out(bytes.size() / SizeOf(entry.dtype));
  if (!WidenAll(entry.dtype, bytes, &out)) {
    return Fail(ErrorKind::kFormat, tensor, "a number above 2^63 - 1", "whole numbers below 2^63");
  }
  return out;
}

bool IsPickle(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // Protocols 2 to 5; and torch.save's zip, whose first member is ARCHIVE/data.pkl.
  if (text.size() >= 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5) return true;
  return text.starts_with("PK\x03\x04") &&
         text.substr(0, 512).find("data.pkl") != std::string_view::npos;
}

tl::unexpected<Error> PickleError(const std::string& where) {
  return Fail(ErrorKind::kFormat, where,
              "a Python pickle, which can run any program when it is loaded",
              "a .safetensors or .npz file",
              "save it in Python with safetensors.torch.save_file(model.state_dict(), "
              "\"model.safetensors\")");
}

}  // namespace heed
