#include "io/llama2c.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/plural.h"
#include "tensor/shape.h"

namespace heed {
namespace {

constexpr uint32_t kMagic = 0x616b3432;  // "ak42" read from its end
constexpr size_t kSizesBytes = 7 * sizeof(int32_t);
constexpr size_t kPaddedHeader = 256;  // of version 1
constexpr int32_t kMostLayers = 1024;

size_t HeaderBytes(int version) { return version == 0 ? kSizesBytes : kPaddedHeader; }

// Appends the tensors of a file of `s`, one behind the other.
class Layout {
 public:
  explicit Layout(const Llama2cSizes& s) : s_(s), at_(HeaderBytes(s.version)) {}

  std::vector<TensorEntry> Take() { return std::move(tensors_); }

  void Add(std::string name, std::vector<int64_t> shape) {
    const auto bytes = static_cast<size_t>(*ElementCount(shape)) * sizeof(float);
    tensors_.push_back({std::move(name), DType::kF32, std::move(shape), at_, bytes});
    at_ += bytes;
  }
  // One for each layer.
  void AddLayers(std::string_view part, const std::vector<int64_t>& shape) {
    for (int32_t i = 0; i < s_.n_layers; ++i) Add(fmt::format("layers.{}.{}", i, part), shape);
  }
  void AddAttention() {
    const int64_t kv = int64_t{s_.dim} / s_.n_heads * s_.n_kv_heads;
    AddLayers("attention.wq.weight", {s_.dim, s_.dim});
    AddLayers("attention.wk.weight", {kv, s_.dim});
    AddLayers("attention.wv.weight", {kv, s_.dim});
    AddLayers("attention.wo.weight", {s_.dim, s_.dim});
  }
  void AddFeedForward() {
    AddLayers("feed_forward.w1.weight", {s_.hidden_dim, s_.dim});
    AddLayers("feed_forward.w2.weight", {s_.dim, s_.hidden_dim});
    AddLayers("feed_forward.w3.weight", {s_.hidden_dim, s_.dim});
  }

 private:
  const Llama2cSizes& s_;
  size_t at_;
  std::vector<TensorEntry> tensors_;
};

tl::unexpected<Error> Bad(const std::string& where, std::string found, std::string expected,
                          std::string hint = "") {
  return Fail(ErrorKind::kFormat, where, std::move(found), std::move(expected), std::move(hint));
}

Status CheckSizes(const Llama2cSizes& s, const std::string& where) {
  const std::pair<const char*, int32_t> sizes[] = {
      {"dim", s.dim},         {"hidden_dim", s.hidden_dim}, {"n_layers", s.n_layers},
      {"n_heads", s.n_heads}, {"n_kv_heads", s.n_kv_heads}, {"vocab_size", s.vocab_size},
      {"seq_len", s.seq_len}};
  for (const auto& [name, size] : sizes) {
    if (size < 1) {
      return Bad(where + ": " + name, fmt::format("{}", size), "1 or above",
                 "the file is not one of llama2.c's checkpoints");
    }
  }
  if (s.n_layers > kMostLayers) {
    return Bad(where + ": n_layers", fmt::format("{}", s.n_layers),
               fmt::format("at most {}", kMostLayers),
               "the file is not one of llama2.c's checkpoints");
  }
  if (s.dim % s.n_heads != 0 || s.n_heads % s.n_kv_heads != 0 || s.dim / s.n_heads % 2 != 0) {
    return Bad(where,
               fmt::format("{} head{} on {} key/value head{} at width {}", s.n_heads,
                           Plural(s.n_heads), s.n_kv_heads, Plural(s.n_kv_heads), s.dim),
               "heads that divide the width into even numbers, and whole groups of them");
  }
  return {};
}

// The bytes that the sizes make: below 2^127, for each size is below 2^31.
unsigned __int128 FileBytes(const Llama2cSizes& s) {
  using Wide = unsigned __int128;
  const Wide dim = s.dim, kv = s.dim / s.n_heads * Wide(s.n_kv_heads), layers = s.n_layers;
  const Wide embedding = s.vocab_size * dim;
  const Wide layer = 2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * dim * s.hidden_dim;
  const Wide tables = s.version == 0 ? Wide(s.seq_len) * (s.dim / s.n_heads) : 0;
  const Wide floats =
      embedding + layers * layer + dim + tables + (s.shared_classifier ? 0 : embedding);
  return HeaderBytes(s.version) + floats * sizeof(float);
}

Result<Llama2cSizes> ParseHeader(std::span<const std::byte> bytes, const std::string& where) {
  Llama2cSizes s;
  const auto refuse_short = [&](size_t needed) {
    return Bad(where, fmt::format("{} byte{}", bytes.size(), Plural(std::ssize(bytes))),
               fmt::format("a header of {}", needed), "the file is cut short or of another format");
  };
  if (bytes.size() < kSizesBytes) return refuse_short(kSizesBytes);
  uint32_t head[2];
  std::memcpy(head, bytes.data(), sizeof(head));
  size_t at = 0;
  if (head[0] == kMagic) {
    if (head[1] != 1) {
      return Bad(where, fmt::format("version {} of llama2.c's format", head[1]), "version 0 or 1",
                 head[1] == 2 ? "export the checkpoint again with --version 1" : "");
    }
    if (bytes.size() < kPaddedHeader) return refuse_short(kPaddedHeader);
    s.version = 1;
    at = sizeof(head);
  }
  int32_t sizes[7];
  std::memcpy(sizes, bytes.data() + at, sizeof(sizes));
  s.dim = sizes[0];
  s.hidden_dim = sizes[1];
  s.n_layers = sizes[2];
  s.n_heads = sizes[3];
  s.n_kv_heads = sizes[4];
  s.vocab_size = sizes[5];
  s.seq_len = sizes[6];
  if (s.version == 1) {
    s.shared_classifier = bytes[at + sizeof(sizes)] != std::byte{0};
  } else if (s.vocab_size < 0 && s.vocab_size != INT32_MIN) {
    s.vocab_size = -s.vocab_size;
    s.shared_classifier = false;
  }
  return s;
}

}  // namespace

std::string Llama2cHeader(const Llama2cSizes& s) {
  std::string header;
  const auto put = [&header](auto number) {
    header.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  if (s.version == 1) {
    put(kMagic);
    put(int32_t{1});
  }
  const bool negative = s.version == 0 && !s.shared_classifier;
  for (const int32_t size : {s.dim, s.hidden_dim, s.n_layers, s.n_heads, s.n_kv_heads,
                             negative ? -s.vocab_size : s.vocab_size, s.seq_len}) {
    put(size);
  }
  if (s.version == 1) put(static_cast<uint8_t>(s.shared_classifier));
  header.resize(HeaderBytes(s.version), '\0');
  return header;
}

std::vector<TensorEntry> Llama2cTensors(const Llama2cSizes& s) {
  Layout layout(s);
  const std::vector<int64_t> width = {s.dim};
  if (s.version == 0) {
    layout.Add("tok_embeddings.weight", {s.vocab_size, s.dim});
    layout.AddLayers("attention_norm.weight", width);
    layout.AddAttention();
    layout.AddLayers("ffn_norm.weight", width);
    layout.AddFeedForward();
    layout.Add("norm.weight", width);
    const std::vector<int64_t> angles = {s.seq_len, s.dim / s.n_heads / 2};
    layout.Add("freqs_cos", angles);
    layout.Add("freqs_sin", angles);
  } else {
    layout.AddLayers("attention_norm.weight", width);
    layout.AddLayers("ffn_norm.weight", width);
    layout.Add("norm.weight", width);
    layout.Add("tok_embeddings.weight", {s.vocab_size, s.dim});
    layout.AddAttention();
    layout.AddFeedForward();
  }
  if (!s.shared_classifier) layout.Add("output.weight", {s.vocab_size, s.dim});
  return layout.Take();
}

Result<Llama2cFile> Llama2cFile::Open(const std::string& path) {
  HEED_ASSIGN(MappedFile mapped, MappedFile::Open(path));
  HEED_ASSIGN(Llama2cFile file, Parse(mapped.bytes(), path));
  file.file_ = std::move(mapped);
  return file;
}

Result<Llama2cFile> Llama2cFile::Parse(std::span<const std::byte> bytes, const std::string& where) {
  Llama2cFile file;
  HEED_ASSIGN(file.sizes_, ParseHeader(bytes, where));
  HEED_TRY(CheckSizes(file.sizes_, where));
  const unsigned __int128 expected = FileBytes(file.sizes_);
  if (expected != bytes.size()) {
    const bool countable = expected <= static_cast<unsigned __int128>(INT64_MAX);
    return Bad(where, fmt::format("{} byte{}", bytes.size(), Plural(std::ssize(bytes))),
               countable ? fmt::format("{}, as its header makes", static_cast<uint64_t>(expected))
                         : "sizes that a file can have",
               "the file is damaged or not one of llama2.c's checkpoints");
  }
  file.bytes_ = bytes;
  file.tensors_ = Llama2cTensors(file.sizes_);
  return file;
}

}  // namespace heed
