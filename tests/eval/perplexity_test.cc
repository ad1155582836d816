// What an evaluation tells of itself while it runs.
#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/mixes.h"
#include "text/byte_tokenizer.h"

namespace heed {
namespace {

TEST(Evaluation, SaysHowManyBytesAreDone) {
  ModelConfig config;
  config.n_layer = 1;
  config.n_head = 2;
  config.n_embd = 8;
  config.block_size = 1024;  // four windows at once
  config.vocab_size = 256;
  const auto model = NoisyModel(config, SimdKernels());
  const std::string first(10000, 'a'), second(500, 'b');
  const std::vector<PlacedText> texts = {{first, {}}, {"x", {}}, {second, {}}};
  std::vector<int64_t> done;
  const auto loss = EvaluateTexts(*model, ByteTokenizer(), texts, /*bos=*/false,
                                  [&](int64_t bytes, int64_t total) {
                                    EXPECT_EQ(total, 10501);
                                    done.push_back(bytes);
                                  });
  ASSERT_TRUE(loss);
  // 4096 and 8192 of 9999 predictions, one window more, the rest; then the last text.
  EXPECT_EQ(done, (std::vector<int64_t>{0, 4096, 8192, 9216, 10000, 10501}));
}

}  // namespace
}  // namespace heed
