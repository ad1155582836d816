// Whatever the bytes, the reader answers with arrays or with an error.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/tensor_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = heed::TensorFile::Parse(bytes, "fuzz.npz");
  if (!file) return file.error().Message().empty() ? std::abort(), 0 : 0;
  for (const heed::TensorEntry& tensor : file->tensors()) {
    const auto numbers = file->Floats(tensor.name);
    const auto integers = file->Integers(tensor.name);
    if (numbers && integers) std::abort();
  }
  return 0;
}
