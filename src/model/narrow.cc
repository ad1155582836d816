#include "model/narrow.h"

namespace heed {
namespace {

// Measured on two Zen 4 cores: up to these a thread is faster by 1.3 and more than over rows.
constexpr int64_t kMostWidth = 16, kMostVocabulary = 512, kMostPositions = 128, kLeastBatch = 8;

NarrowNorm Describe(const Norm& norm) {
  return {norm.gain->offset, norm.bias == nullptr ? kNoParameter : norm.bias->offset};
}

NarrowLinear Describe(const Linear& linear) {
  return {linear.in,
          linear.out,
          linear.weight->offset,
          linear.out_in ? 1 : linear.out,
          linear.out_in ? linear.in : 1,
          linear.bias == nullptr ? kNoParameter : linear.bias->offset};
}

NarrowBlock Describe(const Block& block) {
  NarrowBlock narrow;
  narrow.norm_1 = Describe(block.norm_1);
  narrow.norm_2 = Describe(block.norm_2);
  for (const Linear& part : block.attention.qkv) narrow.qkv.push_back(Describe(part));
  narrow.proj = Describe(block.attention.proj);
  narrow.fc = Describe(block.mlp.fc);
  if (block.mlp.swiglu) narrow.gate = Describe(block.mlp.gate);
  narrow.mlp_proj = Describe(block.mlp.proj);
  return narrow;
}

}  // namespace

std::shared_ptr<const NarrowGpt> DescribeNarrow(const ModelConfig& config,
                                                const Embedding& embedding,
                                                const std::vector<Block>& blocks, const Head& head,
                                                const ParameterSet& parameters) {
  if (config.model != ModelKind::kGpt || config.n_embd > kMostWidth ||
      config.vocab_size > kMostVocabulary || config.head_dim > kNarrowHeadDim ||
      config.sliding_window > 0) {
    return nullptr;
  }
  auto description = std::make_shared<NarrowGpt>();
  NarrowGpt& narrow = *description;
  narrow.C = config.n_embd;
  narrow.V = config.vocab_size;
  narrow.H = config.n_head;
  narrow.Hkv = config.n_kv_head;
  narrow.D = config.head_dim;
  narrow.inner = config.n_inner;
  narrow.swiglu = config.mlp == MlpKind::kSwiglu;
  narrow.rms = config.norm == NormKind::kRmsNorm;
  narrow.eps = config.norm_eps;
  narrow.half = config.position == Position::kRope ? config.rotary_dim / 2 : 0;
  narrow.interleaved = config.rope_pairing == RopePairing::kInterleaved;
  narrow.wte = embedding.wte->offset;
  if (embedding.wpe != nullptr) narrow.wpe = embedding.wpe->offset;
  for (const Block& block : blocks) narrow.blocks.push_back(Describe(block));
  narrow.norm = Describe(head.norm);
  narrow.head = {head.C, head.V, head.weight->offset, 1, head.C};
  narrow.parameters = parameters.block_elements();
  return description;
}

bool NarrowBatch(int64_t B) { return B >= kLeastBatch; }
bool NarrowLength(int64_t T) { return T <= kMostPositions; }

}  // namespace heed
