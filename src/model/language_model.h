// What can read and write text: a GPT, or a model without layers that gives the next token's
// probabilities in its own way.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "model/gpt.h"
#include "tensor/blocks.h"
#include "text/tokenizer.h"

namespace heed {

// Predicts from the tokens before, without layers, passes or a cache.
class Predictor {
 public:
  virtual ~Predictor() = default;

  virtual int64_t vocab_size() const = 0;
  // log p of every token behind `text` [V]: -inf where the probability is 0.
  virtual void LogProbabilities(std::span<const int32_t> text, std::span<float> log_p) const = 0;
  // The sum of -log p of text[1], text[2], ... in nats; infinite when one of them is impossible.
  virtual double Loss(std::span<const int32_t> text) const = 0;
  // What it is and how large, in lines for people.
  virtual std::string Description() const = 0;
};

struct LanguageModel {
  // One of the two.
  std::unique_ptr<Gpt> gpt;
  std::unique_ptr<Predictor> predictor;
  // As LoadedModel's.
  Result<std::unique_ptr<Tokenizer>> tokenizer;
  BlockType dtype = BlockType::kF32;  // of a GPT's matrices as its files keep them
};

}  // namespace heed
