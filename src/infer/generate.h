// Text from a model: prompts are prefilled in chunks, equal prompts once; then all samples decode
// together, one token a step, from the cache. Past block_size the window slides: the last
// block_size tokens are read anew for each token, at positions from 0.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "infer/sampler.h"
#include "model/language_model.h"
#include "text/tokenizer.h"

namespace heed {

struct SampleRequest {
  std::vector<int32_t> prompt;  // at least one token
  SamplingSettings sampling;
  uint64_t seed = 0;  // with the position, it fixes every draw, whatever else is generated
};

struct GenerateOptions {
  int64_t max_tokens = 200;
  std::vector<std::string> stop;  // a sample ends before the first of these strings
  bool cache = true;              // false reads the whole text anew for each token
  // Called when all prompts are read and more than one token is to come.
  std::function<Status()> before_decoding;
  // Given the text of a request as it grows, in bytes that no stop string can take back; false ends
  // all work with the samples as they are.
  std::function<bool(size_t request, std::string_view bytes)> on_text;
};

struct Sample {
  std::vector<int32_t> tokens;  // the continuation alone
  std::string text;             // its bytes, cut before a stop string
  bool stopped = false;         // by a stop string
  bool ended = false;           // the model drew the token that ends a text, or starts another
  bool slid = false;            // the window slid past the text's beginning
  double entropy = 0;           // nats, mean over the distributions that tokens were drawn from
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;
};

// One sample for each request, in their order. Error: not enough memory, or logits that are not
// finite.
Result<std::vector<Sample>> Generate(const Gpt& model, const Tokenizer& tokenizer,
                                     std::span<const SampleRequest> requests,
                                     const GenerateOptions& options);
// The same from any kind of model; one without a cache reads each text anew, and looks back as far
// as it does.
Result<std::vector<Sample>> Generate(const LanguageModel& model,
                                     std::span<const SampleRequest> requests,
                                     const GenerateOptions& options);

}  // namespace heed
