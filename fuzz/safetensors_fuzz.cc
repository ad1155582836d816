// Whatever the bytes, the reader answers with tensors inside them or with an error.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = heed::SafetensorsFile::Parse(bytes, "fuzz");
  if (!file) return file.error().Message().empty() ? std::abort(), 0 : 0;
  size_t covered = 0;
  for (const heed::TensorEntry& tensor : file->tensors()) {
    covered += file->Bytes(tensor).size();
    const auto numbers = file->Doubles(tensor.name);
    const auto integers = file->Integers(tensor.name);
    if (numbers && integers) std::abort();
  }
  if (covered > size) std::abort();
  return 0;
}
