// Whatever the bytes, the reader answers with tensors that cover the file or with an error.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/llama2c.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = heed::Llama2cFile::Parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file) return file.error().Message().empty() ? std::abort(), 0 : 0;
  size_t covered = heed::Llama2cHeader(file->sizes()).size();
  for (const heed::TensorEntry& tensor : file->tensors()) {
    if (tensor.begin != covered) std::abort();
    covered += file->Bytes(tensor).size();
  }
  if (covered != size) std::abort();
  return 0;
}
