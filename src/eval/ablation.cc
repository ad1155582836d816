#include "eval/ablation.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/plural.h"
#include "eval/perplexity.h"

namespace heed {
namespace {

// While it lives, a head's part of the output projection is 0, and so is what it adds to the
// residual stream.
class SilencedHead {
 public:
  SilencedHead(const Attention& attention, int64_t head)
      : weight_(*attention.proj.weight), saved_(weight_.data, weight_.data + weight_.elements) {
    const Linear& proj = attention.proj;
    const int64_t D = attention.head_dim;
    if (proj.out_in) {
      for (int64_t o = 0; o < proj.out; ++o) {
        std::fill_n(weight_.data + o * proj.in + head * D, D, 0.0f);
      }
    } else {
      std::fill_n(weight_.data + head * D * proj.out, D * proj.out, 0.0f);
    }
  }
  ~SilencedHead() { std::ranges::copy(saved_, weight_.data); }
  SilencedHead(const SilencedHead&) = delete;
  SilencedHead& operator=(const SilencedHead&) = delete;

 private:
  const Parameter& weight_;
  const std::vector<float> saved_;
};

}  // namespace

Result<HeadAblation> AblateHeads(Gpt* model, std::span<const int32_t> tokens,
                                 const std::function<void(int64_t head)>& on_head) {
  if (tokens.size() < 2) {
    return BadRequest("text", fmt::format("{} token{}", tokens.size(), Plural(std::ssize(tokens))),
                      "at least 2, so that one can be predicted");
  }
  if (model->blocks().empty()) {
    return BadRequest("model", std::string(NameOf(model->config().model)),
                      "a model with attention");
  }
  HEED_ASSIGN(const std::unique_ptr<WindowedLoss> loss, WindowedLoss::Create(*model));
  HeadAblation ablation;
  ablation.tokens = static_cast<int64_t>(tokens.size()) - 1;
  const auto mean = [&] { return loss->Sum(tokens) / static_cast<double>(ablation.tokens); };
  ablation.loss = mean();
  for (const Block& block : model->blocks()) {
    for (int64_t head = 0; head < model->config().n_head; ++head) {
      if (on_head) on_head(static_cast<int64_t>(ablation.change.size()));
      const SilencedHead silenced(block.attention, head);
      ablation.change.push_back(mean() - ablation.loss);
    }
  }
  return ablation;
}

}  // namespace heed
