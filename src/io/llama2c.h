// llama2.c's checkpoints (karpathy/llama2.c, export.py): a header of seven sizes, then every tensor
// of the model in float32 in a fixed order, without names. Version 0 has the sizes alone, a
// negative vocab_size for a classifier of its own, and tables of rotary angles; version 1 begins
// with "ak42" and pads its header to 256 bytes. Rows of wq and wk are in the order of interleaved
// pairs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "io/tensor_entry.h"

namespace heed {

struct Llama2cSizes {
  int version = 0;
  int32_t dim = 0;  // model width
  int32_t hidden_dim = 0;
  int32_t n_layers = 0;
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;
  int32_t vocab_size = 0;
  int32_t seq_len = 0;
  bool shared_classifier = true;  // the head is the embedding

  bool operator==(const Llama2cSizes&) const = default;
};

class Llama2cFile {
 public:
  // Errors: kIo as MappedFile::Open; kFormat: a version above 1, sizes below 1 or that no model
  // has, more or fewer bytes than the sizes make.
  static Result<Llama2cFile> Open(const std::string& path);
  // The same from memory that outlives the result; `where` is named in errors.
  static Result<Llama2cFile> Parse(std::span<const std::byte> bytes, const std::string& where);

  const Llama2cSizes& sizes() const { return sizes_; }
  // Under Meta's names ("layers.0.attention.wq.weight") and, in version 0, freqs_cos and freqs_sin;
  // all F32, `begin` from the file's start.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  std::span<const std::byte> Bytes(const TensorEntry& entry) const {
    return bytes_.subspan(entry.begin, entry.size);
  }

 private:
  Llama2cFile() = default;

  MappedFile file_;
  std::span<const std::byte> bytes_;
  Llama2cSizes sizes_;
  std::vector<TensorEntry> tensors_;
};

// The header's bytes, and the tensors behind it in their order: what a writer follows.
std::string Llama2cHeader(const Llama2cSizes& sizes);
std::vector<TensorEntry> Llama2cTensors(const Llama2cSizes& sizes);

}  // namespace heed
