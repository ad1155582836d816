// One tensor of a file: what the formats' readers have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace heed {

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // [] is one number
  size_t begin = 0;            // of its bytes, counted from where the format keeps them
  size_t size = 0;             // bytes: the shape's elements times SizeOf(dtype)
};

// The entry called `name`, or null.
const TensorEntry* FindEntry(std::span<const TensorEntry> entries, std::string_view name);
// The same; error (kFormat) when absent, with what was `expected` of it ("[B, T, C]"), and the
// nearest name, or some names that there are.
Result<const TensorEntry*> RequireEntry(std::span<const TensorEntry> entries, std::string_view name,
                                        const std::string& where, const std::string& expected = "");

// The row-major numbers of `entry`, T = float or double, from its little-endian bytes of any
// alignment. Error (kFormat): not a float dtype.
template <class T>
Result<std::vector<T>> DecodeFloats(const TensorEntry& entry, std::span<const std::byte> bytes,
                                    const std::string& where);
// Errors (kFormat): a float dtype; a number beyond int64.
Result<std::vector<int64_t>> DecodeIntegers(const TensorEntry& entry,
                                            std::span<const std::byte> bytes,
                                            const std::string& where);

// Whether a file is one that Python's pickle would run: torch.save's (old, or a zip with data.pkl
// inside) or pickle.dump's.
bool IsPickle(std::span<const std::byte> bytes);
// The refusal, which says how to save safetensors instead.
tl::unexpected<Error> PickleError(const std::string& where);

}  // namespace heed
