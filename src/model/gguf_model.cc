#include "model/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/aside.h"
#include "base/quote.h"
#include "io/gguf.h"
#include "model/gguf_vocabulary.h"
#include "model/names.h"
#include "nn/rope.h"

namespace heed {
namespace {

const char* const kArchitecture = "general.architecture";

using Metadata = std::vector<std::pair<std::string, GgufValue>>;

// Divisors of the rotary frequencies [head_dim / 2]: how GGUF has llama3's stretch.
const char* const kRopeDivisors = "rope_freqs.weight";
// Llama 3.1's own, where a file has divisors alone.
constexpr int64_t kLlama3Context = 8192;
constexpr double kDivisorBound = 1e-4;

// qwen2's q and k rows stand as Hugging Face has them; llama's are reordered.
FileOrder OrderOf(const std::string& architecture) {
  return {.out_in = true, .interleaved = architecture == "llama"};
}

tl::unexpected<Error> Bad(const GgufFile& file, const std::string& key, std::string found,
                          std::string expected, std::string hint = "") {
  return Fail(ErrorKind::kFormat, file.where() + ": " + key, std::move(found), std::move(expected),
              std::move(hint));
}

// What a plain frequency is divided by, for every pair of channels.
std::vector<double> Divisors(const ModelConfig& c) {
  const std::vector<double> plain = RopeFrequencies(c.head_dim, c.rope_theta);
  std::vector<double> divisors = RopeFrequencies(c.head_dim, c.rope_theta, c.rope_scaling);
  for (size_t i = 0; i < plain.size(); ++i) divisors[i] = plain[i] / divisors[i];
  return divisors;
}

// Reads the metadata of one architecture into a ModelConfig.
class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file) {}

  Result<ModelConfig> Read() {
    HEED_TRY(file_.Get(kArchitecture, &architecture_));
    if (architecture_ != "llama" && architecture_ != "qwen2" && architecture_ != "gpt2") {
      return Bad(file_, kArchitecture, architecture_.empty() ? "nothing" : Quoted(architecture_),
                 "llama, qwen2 or gpt2");
    }
    HEED_TRY(RefuseParts());
    ModelConfig c;
    HEED_TRY(Require("block_count", &c.n_layer));
    HEED_TRY(Require("attention.head_count", &c.n_head));
    HEED_TRY(Require("embedding_length", &c.n_embd));
    HEED_TRY(Require("context_length", &c.block_size));
    HEED_TRY(Require("feed_forward_length", &c.n_inner));
    const GgufTensor* embedding = file_.Find("token_embd.weight");
    if (embedding == nullptr) {
      return Bad(file_, "token_embd.weight", "no such tensor", "a model's token embedding",
                 "a file of a vocabulary alone cannot be run");
    }
    c.vocab_size = embedding->shape[0];
    c.tied = file_.Find("output.weight") == nullptr;
    if (architecture_ == "gpt2") {
      HEED_TRY(Get("attention.layer_norm_epsilon", &c.norm_eps));
    } else {
      HEED_TRY(ReadLlama(&c));
    }
    return c.Resolve().map([&c] { return c; }).map_error([this](Error error) {
      error.kind = ErrorKind::kFormat;
      error.where = file_.where() + ": " + error.where;
      return error;
    });
  }

 private:
  std::string Key(const std::string& name) const { return architecture_ + "." + name; }
  template <class T>
  Status Get(const std::string& name, T* out) const {
    return file_.Get(Key(name), out);
  }
  Status Require(const std::string& name, int64_t* out) const {
    if (!file_.Has(Key(name))) return Bad(file_, Key(name), "no such key", "a whole number");
    return Get(name, out);
  }

  Status RefuseParts() const {
    int64_t files = 1, experts = 0;
    HEED_TRY(file_.Get("split.count", &files));
    if (files > 1) {
      return Bad(file_, "split.count", fmt::format("{}", files), "1",
                 "join the parts first, with llama-gguf-split --merge");
    }
    HEED_TRY(Get("expert_count", &experts));
    if (experts > 0) return Bad(file_, Key("expert_count"), fmt::format("{}", experts), "none");
    return {};
  }

  Status ReadLlama(ModelConfig* c) const {
    c->position = Position::kRope;
    c->norm = NormKind::kRmsNorm;
    c->mlp = MlpKind::kSwiglu;
    c->bias = false;
    HEED_TRY(Get("attention.head_count_kv", &c->n_kv_head));
    HEED_TRY(Get("attention.layer_norm_rms_epsilon", &c->norm_eps));
    HEED_TRY(Get("attention.key_length", &c->head_dim));
    HEED_TRY(Get("attention.sliding_window", &c->sliding_window));
    int64_t value_length = c->head_dim;
    HEED_TRY(Get("attention.value_length", &value_length));
    if (value_length != c->head_dim) {
      return Bad(file_, Key("attention.value_length"), fmt::format("{}", value_length),
                 "that of keys");
    }
    if (file_.Find("blk.0.attn_q.bias") != nullptr) {
      c->attention_bias = file_.Find("blk.0.attn_output.bias") != nullptr ? AttentionBias::kAll
                                                                          : AttentionBias::kQkv;
    }
    return ReadRope(c);
  }

  Status ReadRope(ModelConfig* c) const {
    HEED_TRY(Get("rope.freq_base", &c->rope_theta));
    HEED_TRY(Get("rope.dimension_count", &c->rotary_dim));
    HEED_TRY(c->Resolve());
    if (c->rotary_dim != c->head_dim) {
      return Bad(file_, Key("rope.dimension_count"), fmt::format("{}", c->rotary_dim),
                 fmt::format("{}, the whole head", c->head_dim));
    }
    RopeScaling& s = c->rope_scaling;
    std::string type = "none";
    HEED_TRY(Get("rope.scaling.type", &type));
    if (type == "linear") s.rope_type = RopeStretch::kLinear;
    if (type == "yarn") s.rope_type = RopeStretch::kYarn;
    if (type != "none" && s.rope_type == RopeStretch::kNone) {
      return Bad(file_, Key("rope.scaling.type"), Quoted(type), "none, linear or yarn");
    }
    s.original_max_position_embeddings = type == "yarn" ? c->block_size : 0;
    if (type != "none") HEED_TRY(Get("rope.scaling.factor", &s.factor));
    if (type == "yarn") {
      HEED_TRY(Get("rope.scaling.original_context_length", &s.original_max_position_embeddings));
      HEED_TRY(Get("rope.scaling.yarn_beta_fast", &s.beta_fast));
      HEED_TRY(Get("rope.scaling.yarn_beta_slow", &s.beta_slow));
    }
    const GgufTensor* divisors = file_.Find(kRopeDivisors);
    return divisors == nullptr ? Status() : ReadDivisors(*divisors, c);
  }

  // The settings of llama3's stretch that make these divisors.
  Status ReadDivisors(const GgufTensor& tensor, ModelConfig* c) const {
    const std::vector<float> want = file_.Floats(tensor);
    RopeScaling& s = c->rope_scaling;
    s.rope_type = RopeStretch::kLlama3;
    s.factor = *std::ranges::max_element(want);
    s.original_max_position_embeddings = kLlama3Context;
    HEED_TRY(Get("rope.scaling.original_context_length", &s.original_max_position_embeddings));
    HEED_TRY(Get("rope.scaling.low_freq_factor", &s.low_freq_factor));
    HEED_TRY(Get("rope.scaling.high_freq_factor", &s.high_freq_factor));
    HEED_TRY(c->Resolve());
    const std::vector<double> got = Divisors(*c);
    bool equal = got.size() == want.size();
    for (size_t i = 0; equal && i < got.size(); ++i) {
      equal = std::abs(got[i] - want[i]) <= kDivisorBound * got[i];
    }
    if (equal) return {};
    return Bad(file_, kRopeDivisors, "divisors of rotary frequencies",
               "those of Llama 3's stretch");
  }

  const GgufFile& file_;
  std::string architecture_;
};

// Why a model has no place in llama.cpp's architectures; "" when it has.
std::string Misfit(const ModelConfig& c) {
  if (c.sliding_window > 0 && c.sliding_window < c.block_size) {
    return "a sliding window, which llama.cpp does not read";
  }
  if (c.family() == Family::kHeed) {
    return fmt::format("a mix that no architecture has: {} with {} and {} positions{}",
                       NameOf(c.norm), NameOf(c.mlp), NameOf(c.position),
                       c.n_kv_head == c.n_head ? "" : " and grouped queries");
  }
  return "";
}

std::string ArchitectureOf(const ModelConfig& c) {
  if (c.family() == Family::kGpt2) return "gpt2";
  return c.attention_bias == AttentionBias::kQkv ? "qwen2" : "llama";
}

void PutRopeScaling(const ModelConfig& c, const std::string& prefix, Metadata* metadata) {
  const RopeScaling& s = c.rope_scaling;
  const auto put = [&](const char* key, GgufValue value) {
    metadata->emplace_back(prefix + "rope.scaling." + key, std::move(value));
  };
  if (s.rope_type == RopeStretch::kNone) return;
  if (s.rope_type != RopeStretch::kLinear) {
    put("original_context_length", s.original_max_position_embeddings);
  }
  if (s.rope_type == RopeStretch::kLlama3) {
    put("low_freq_factor", s.low_freq_factor);
    put("high_freq_factor", s.high_freq_factor);
    return;
  }
  put("type", std::string(NameOf(s.rope_type)));
  put("factor", s.factor);
  if (s.rope_type == RopeStretch::kYarn) {
    put("yarn_beta_fast", s.beta_fast);
    put("yarn_beta_slow", s.beta_slow);
  }
}

Metadata MetadataOf(const ModelConfig& c) {
  const std::string architecture = ArchitectureOf(c), prefix = architecture + ".";
  Metadata metadata = {{kArchitecture, architecture},
                       {"general.name", std::string("heed")},
                       {prefix + "context_length", c.block_size},
                       {prefix + "embedding_length", c.n_embd},
                       {prefix + "block_count", c.n_layer},
                       {prefix + "feed_forward_length", c.n_inner},
                       {prefix + "attention.head_count", c.n_head},
                       {prefix + "attention.head_count_kv", c.n_kv_head},
                       {prefix + "vocab_size", c.vocab_size}};
  if (c.family() == Family::kGpt2) {
    metadata.emplace_back(prefix + "attention.layer_norm_epsilon", c.norm_eps);
    return metadata;
  }
  metadata.emplace_back(prefix + "attention.layer_norm_rms_epsilon", c.norm_eps);
  metadata.emplace_back(prefix + "attention.key_length", c.head_dim);
  metadata.emplace_back(prefix + "attention.value_length", c.head_dim);
  metadata.emplace_back(prefix + "rope.dimension_count", c.rotary_dim);
  metadata.emplace_back(prefix + "rope.freq_base", c.rope_theta);
  PutRopeScaling(c, prefix, &metadata);
  return metadata;
}

GgufTensorToWrite ToWrite(const Gpt& model, const Parameter& p, BlockType type) {
  const ModelConfig& c = model.config();
  const FileOrder order = OrderOf(ArchitectureOf(c));
  GgufTensorToWrite tensor{*NameIn(Naming::kGguf, c.family(), p.name), type, ShapeIn(order, p)};
  const bool plain = p.shape.size() == 1 || p.name == "wpe.weight";
  if (plain || tensor.shape.back() % SizeOf(type).elements != 0) tensor.type = BlockType::kF32;
  tensor.values = [&c, &p, order] {
    std::vector<float> values(static_cast<size_t>(p.elements));
    ToFileOrder(order, c, p, p.values, values.data());
    return values;
  };
  return tensor;
}

// nanoGPT's GPT-2 leaves biases out; GGUF's has them, and zeros change no number.
Result<std::unique_ptr<Gpt>> WithZeroBiases(const Gpt& model) {
  ModelConfig config = model.config();
  config.bias = true;
  HEED_TRY(config.Resolve());
  if (model.config().bias || config.family() != Family::kGpt2) return nullptr;
  HEED_ASSIGN(std::unique_ptr<Gpt> biased, Gpt::Create(config, model.kernels()));
  for (const Parameter& p : model.parameters().all()) {
    std::copy_n(p.values, p.elements, biased->parameters().Find(p.name)->data);
  }
  return biased;
}

Status SaveFitting(const std::string& path, const Gpt& model, const Tokenizer* tokenizer,
                   BlockType type, bool overwrite) {
  const ModelConfig& c = model.config();
  if (const std::string misfit = Misfit(c); !misfit.empty()) {
    return BadRequest(path, misfit, "a model that GGUF has a name for",
                      "keep the folder, which holds every mix");
  }
  Metadata metadata = MetadataOf(c);
  PutGgufVocabulary(tokenizer, c.vocab_size, &metadata);
  std::vector<GgufTensorToWrite> tensors;
  for (const Parameter& p : model.parameters().all()) tensors.push_back(ToWrite(model, p, type));
  if (c.rope_scaling.rope_type == RopeStretch::kLlama3) {
    const std::vector<double> divisors = Divisors(c);
    tensors.push_back(
        {kRopeDivisors, BlockType::kF32, {static_cast<int64_t>(divisors.size())}, [divisors] {
           return std::vector<float>(divisors.begin(), divisors.end());
         }});
  }
  return WriteGguf(path, metadata, tensors, overwrite);
}

}  // namespace

Result<ModelConfig> GgufConfig(const GgufFile& file) { return ConfigReader(file).Read(); }

Result<LoadedModel> LoadGguf(const std::string& path, const Kernels& kernels, Weights weights) {
  HEED_ASSIGN(GgufFile opened, GgufFile::Open(path));
  const auto kept = std::make_shared<const GgufFile>(std::move(opened));
  const GgufFile& file = *kept;
  HEED_ASSIGN(const ModelConfig config, GgufConfig(file));
  LoadedModel loaded;
  Aside vocabulary([&] { loaded.tokenizer = GgufVocabulary(file); });
  HEED_ASSIGN(loaded.model, EmptyModel(config, kernels, weights));
  if (weights != Weights::kOwned) loaded.model->parameters().Keep(kept);
  std::vector<SourceTensor> tensors;
  for (const GgufTensor& tensor : file.tensors()) {
    tensors.push_back({path, tensor.name, tensor.shape, tensor.type, file.Bytes(tensor)});
  }
  std::string architecture;
  HEED_TRY(file.Get(kArchitecture, &architecture));
  const auto is_unused = [](std::string_view name) { return name == kRopeDivisors; };
  HEED_ASSIGN(loaded.report, LoadNamed(tensors, Naming::kGguf, OrderOf(architecture), is_unused,
                                       path, weights, loaded.model.get()));
  vocabulary.Join();
  HEED_TRY(CheckVocabulary(loaded.tokenizer, config, path));
  return loaded;
}

Status SaveGguf(const std::string& path, const Gpt& model, const Tokenizer* tokenizer,
                BlockType type, bool overwrite) {
  HEED_ASSIGN(const std::unique_ptr<Gpt> biased, WithZeroBiases(model));
  return SaveFitting(path, biased == nullptr ? model : *biased, tokenizer, type, overwrite);
}

}  // namespace heed
