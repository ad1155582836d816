// Whatever the bytes, the reader answers with tensors inside them or with an error, and so does the
// reader of the model's settings.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/gguf.h"
#include "model/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = heed::GgufFile::Parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file) return file.error().Message().empty() ? std::abort(), 0 : 0;
  size_t covered = 0;
  for (const heed::GgufTensor& tensor : file->tensors()) {
    covered += file->Bytes(tensor).size();
    file->Floats(tensor);
  }
  if (covered > size) std::abort();
  const auto config = heed::GgufConfig(*file);
  if (!config && config.error().Message().empty()) std::abort();
  return 0;
}
