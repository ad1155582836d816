// The ledger of a model: every tensor of a forward pass with its shape, memory and work, and what
// parameters, training and the key/value cache take. All of it is read off the layers' own plans,
// parameters and cache; whether memory is shared is measured on the buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/memory.h"
#include "base/status.h"
#include "model/gpt.h"

namespace heed {

enum class CacheType { kF32, kF16, kBF16 };
std::span<const EnumName<CacheType>> EnumNames(CacheType);

struct LedgerTensor {
  std::string name;
  std::string axes;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  int64_t bytes = 0;   // as float32; of the whole tensor, held or not
  int64_t flops = 0;   // of the matrix product that makes it
  bool copy = false;   // whether it was written to memory, rather than being a view or never held
  std::string memory;  // "own", "reuses NAME", "view of NAME", "in place of NAME" or "never held"
};

// What a number of key/value heads means for the cache and the model.
struct GroupingRow {
  int64_t n_kv_head = 0;
  std::string kind;            // "MHA", "GQA" or "MQA"
  int64_t cache_elements = 0;  // 2 · n_layer · B · n_kv_head · T · head_dim
  int64_t cache_bytes = 0;
  int64_t parameters = 0;
};

// Bytes of training, by what they hold. All float32.
struct TrainingBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;  // AdamW's two moments
  int64_t saved = 0;      // activations kept from forward to backward
  int64_t workspace = 0;  // what layers share: logits, gradients on the way

  int64_t total() const { return parameters + gradients + optimizer + saved + workspace; }
};

struct Ledger {
  ModelConfig config;
  int64_t B = 0, T = 0;
  std::vector<LedgerTensor> tensors;  // of an inference pass, in the order of the computation
  std::vector<Parameter> parameters;  // without memory
  int64_t parameter_count = 0;
  int64_t activation_bytes = 0;  // of the same pass; tensors of different layers share memory

  CacheType cache_type = CacheType::kF32;
  int64_t cache_elements = 0, cache_bytes = 0;
  int64_t cache_elements_mha = 0;               // with as many key/value heads as query heads
  std::optional<int64_t> measured_cache_bytes;  // that this program's cache (float32) holds;
                                                // none when the system gave no such memory
  std::vector<GroupingRow> groupings;           // every divisor of n_head, most heads first

  int64_t flops_forward = 0, flops_training_step = 0;
  TrainingBytes training;
  int64_t recompute_bytes = 0;  // of training with activations computed again, in all
  MachineMemory machine;
  bool fits = false;                 // training, in the machine's whole memory
  std::vector<std::string> changes;  // that make it fit, the smallest first; none when it does
  bool same_updates = true;          // whether training is the same with them, but for its speed
};

struct LedgerRequest {
  ModelConfig model;
  int64_t B = 1, T = 64;
  CacheType cache_type = CacheType::kF32;
};

// Errors (kRequest): the rules of ModelConfig::Resolve, B or T out of range, T above block_size,
// sizes whose products exceed 2^60.
Result<Ledger> MakeLedger(const LedgerRequest& request, const MachineMemory& machine);

}  // namespace heed
