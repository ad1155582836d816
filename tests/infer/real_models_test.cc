// Models that other people trained, on numbers that are known of them. They lie in the folder that
// HEED_DATA names; without it these tests skip.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "eval/perplexity.h"
#include "infer/cache.h"
#include "infer/generate.h"
#include "io/safetensors.h"
#include "kernels/reference/attention.h"
#include "model/folder.h"
#include "model/names.h"
#include "support/compare.h"
#include "support/mixes.h"
#include "support/shell.h"
#include "verify/planted.h"
#include "verify/probe.h"

namespace heed {
namespace {

class RealModels : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("HEED_DATA");
    if (folder == nullptr) GTEST_SKIP() << "HEED_DATA names no folder with trained models";
    data_ = std::string(folder) + "/";
  }
  LoadedModel Load(const std::string& model, const std::string& vocabulary) {
    auto loaded = LoadModel(model, SimdKernels(), vocabulary);
    if (!loaded) throw std::runtime_error(loaded.error().Message());
    return std::move(*loaded);
  }
  // The five stories, each without the line breaks around it.
  std::vector<std::string> Stories() {
    const std::string text = ReadText(data_ + "tinystories-sample.txt"), mark = "<|endoftext|>";
    std::vector<std::string> stories;
    for (size_t at = 0, end; (end = text.find(mark, at)) != std::string::npos;
         at = end + mark.size()) {
      std::string story = text.substr(at, end - at);
      story.erase(0, story.find_first_not_of('\n'));
      story.erase(story.find_last_not_of('\n') + 1);
      stories.push_back(std::move(story));
    }
    EXPECT_EQ(stories.size(), 5u);
    return stories;
  }
  TextLoss Loss(const LoadedModel& loaded, const std::vector<std::string>& stories) {
    std::vector<PlacedText> texts;
    for (const std::string& story : stories) texts.push_back({story, {}});
    auto loss = EvaluateTexts(*loaded.model, **loaded.tokenizer, texts, /*bos=*/true);
    if (!loss) throw std::runtime_error(loss.error().Message());
    return *loss;
  }
  std::string data_;
};

// The text that llama2.c's own test (test_all.py) expects of its smallest model.
TEST_F(RealModels, Stories260KTellsItsStoryByteForByte) {
  const LoadedModel loaded = Load(data_ + "stories260K.bin", data_ + "tok512.bin");
  ASSERT_TRUE((*loaded.tokenizer)->bos());
  SampleRequest request{{*(*loaded.tokenizer)->bos()}};
  request.sampling.temperature = 0;
  GenerateOptions options;
  options.max_tokens = 200;
  const auto samples = Generate(*loaded.model, **loaded.tokenizer, {&request, 1}, options);
  ASSERT_TRUE(samples) << samples.error().Message();
  EXPECT_EQ((*samples)[0].text,
            "Once upon a time, there was a little girl named Lily. She loved to play outside in "
            "the park. One day, she saw a big, red ball. She wanted to play with it, but it was "
            "too high.\nLily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't "
            "know what to do. She said, \"I want to play with your ball, but I can't find "
            "it.\"\nLily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I "
            "didn't know what to do.\"\nLily didn't want to help her mom, so she");
}

// Computed in float64 by an independent implementation.
TEST_F(RealModels, TheLossIsThatComputedElsewhere) {
  const TextLoss stories = Loss(Load(data_ + "stories260K.bin", data_ + "tok512.bin"), Stories());
  EXPECT_NEAR(stories.loss, 1.2664, 5e-5);
  EXPECT_EQ(stories.tokens, 1804);
}

// Grouped queries in interleaved pairs; the start token and what follows of each story fill the
// context once, with spaces for line breaks.
TEST_F(RealModels, TheLossOfGroupedQueriesIsThatComputedElsewhere) {
  const LoadedModel loaded = Load(data_ + "babyllama105.bin", data_ + "babyllama105.sp.model");
  const int64_t context = loaded.model->config().block_size, targets = context - 1;
  const auto activations = *Activations::Create(*loaded.model, 1, targets, /*training=*/false);
  double loss = 0;
  int64_t count = 0;
  for (std::string story : Stories()) {
    std::replace(story.begin(), story.end(), '\n', ' ');
    std::vector<int32_t> ids = *(*loaded.tokenizer)->Encode(story);
    ids.insert(ids.begin(), *(*loaded.tokenizer)->bos());
    loss += loaded.model->Loss(loaded.model->NewPass(1, targets), ids.data(), ids.data() + 1,
                               activations.get());
    count += targets;
  }
  EXPECT_NEAR(loss / static_cast<double>(count), 0.6124, 5e-5);
}

// Faults that readers of this format make, planted by weights and settings that mean the same, with
// the loss that an independent implementation of each fault has on one of the stories.
class FaultyReader : public RealModels {
 protected:
  using Change = std::function<void(ModelConfig*)>;
  using Edit = std::function<void(Gpt*)>;

  // Of the first story.
  double LossWith(const Change& change, const Edit& edit) {
    const LoadedModel right = Load(data_ + "stories260K.bin", data_ + "tok512.bin");
    ModelConfig config = right.model->config();
    change(&config);
    const auto model = *Gpt::Create(config, SimdKernels());
    for (size_t i = 0; i < model->parameters().all().size(); ++i) {
      const Parameter& from = right.model->parameters().all()[i];
      std::copy_n(from.data, from.elements, model->parameters().all()[i].data);
    }
    edit(model.get());
    const std::string story = Stories().front();
    const PlacedText text{story, {}};
    return EvaluateTexts(*model, **right.tokenizer, {&text, 1}, /*bos=*/true)->loss;
  }
  // Calls edit for all parameters whose name ends so.
  static void ForEach(Gpt* model, std::string_view ending,
                      const std::function<void(Parameter*)>& edit) {
    for (Parameter& p : model->parameters().all()) {
      if (p.name.ends_with(ending)) edit(&p);
    }
  }
  // Scores are those of `scale` in place of 1 / sqrt(D).
  static void Scale(Gpt* model, double scale) {
    const double factor = scale * std::sqrt(double(model->config().head_dim));
    ForEach(model, "q_proj.weight", [&](Parameter* p) {
      for (int64_t i = 0; i < p->elements; ++i) p->data[i] *= static_cast<float>(factor);
    });
  }

  // Half a unit of the last digit that was written down, and 1e-4 for float32 against float64 and
  // the file's own table of angles.
  static constexpr double kTableBound = 6e-4;
  const Change same_ = [](ModelConfig*) {};
  const Edit none_ = [](Gpt*) {};
};

TEST_F(FaultyReader, HasItsKnownLoss) {
  EXPECT_NEAR(LossWith(same_, none_), 1.3160, 5e-5);
  EXPECT_NEAR(LossWith(same_, [](Gpt* m) { Scale(m, 1); }), 1.454, kTableBound) << "no scale";
  EXPECT_NEAR(LossWith(same_, [](Gpt* m) { Scale(m, 1 / std::sqrt(64.0)); }), 1.922, kTableBound)
      << "scale by the model's width";
  EXPECT_NEAR(LossWith(
                  [](ModelConfig* c) {
                    c->rope_scaling = {RopeStretch::kLinear, 1e12};
                  },
                  none_),
              4.957, kTableBound)
      << "no rope";
  EXPECT_NEAR(LossWith([](ModelConfig* c) { c->rope_theta = 100; }, none_), 5.765, kTableBound)
      << "exponent i / d";
  const Edit as_in_the_file = [](Gpt* m) {
    for (const char* part : {"q_proj.weight", "k_proj.weight"}) {
      ForEach(m, part, [m](Parameter* p) {
        const std::vector<float> values(p->data, p->data + p->elements);
        ToFileOrder({.interleaved = true}, m->config(), *p, values.data(), p->data);
      });
    }
  };
  EXPECT_NEAR(LossWith(same_, as_in_the_file), 5.125, kTableBound) << "rows not reordered";
  // Query head h reads key/value head h % Hkv: the heads' keys and values change places.
  const Edit tiled = [](Gpt* m) {
    const ModelConfig& c = m->config();
    const int64_t D = c.head_dim, Hkv = c.n_kv_head, group = c.n_head / Hkv;
    ForEach(m, "q_proj.weight", [&](Parameter* p) {
      const std::vector<float> from(p->data, p->data + p->elements);
      const int64_t head = D * c.n_embd;
      for (int64_t h = 0; h < c.n_head; ++h) {
        std::copy_n(&from[h * head], head, p->data + (h % Hkv * group + h / Hkv) * head);
      }
    });
    ForEach(m, "o_proj.weight", [&](Parameter* p) {
      const std::vector<float> from(p->data, p->data + p->elements);
      for (int64_t row = 0; row < c.n_embd; ++row) {
        for (int64_t h = 0; h < c.n_head; ++h) {
          std::copy_n(&from[row * c.n_head * D + h * D], D,
                      p->data + row * c.n_head * D + (h % Hkv * group + h / Hkv) * D);
        }
      }
    });
  };
  EXPECT_NEAR(LossWith(same_, tiled), 5.553, kTableBound) << "heads tiled";
}

// A story read token by token through a cache: logits [T, V].
std::vector<float> ThroughACache(const Gpt& model, const std::vector<int32_t>& tokens) {
  const auto T = static_cast<int64_t>(tokens.size());
  const int64_t V = model.config().vocab_size;
  auto cache = *KvCache::Create(model.config(), 1, T);
  const auto activations = *Activations::Create(model, 1, 1, /*training=*/false);
  std::vector<float> logits(T * V);
  for (int64_t t = 0; t < T; ++t) {
    Pass pass = model.NewPass(1, 1);
    const std::vector<KeyValueCache> layers = cache->Extend(0, 1, 1, &pass.offsets);
    const float* x = model.Forward(pass, &tokens[t], activations.get(), layers);
    model.Logits(pass, x, 1, activations.get(), &logits[t * V]);
  }
  return logits;
}

double MeanLoss(const std::vector<float>& logits, const std::vector<int32_t>& tokens) {
  const size_t V = logits.size() / tokens.size();
  double sum = 0;
  for (size_t t = 0; t + 1 < tokens.size(); ++t) {
    double total = 0;
    for (size_t i = 0; i < V; ++i) total += std::exp(double(logits[t * V + i]));
    sum += std::log(total) - logits[t * V + tokens[t + 1]];
  }
  return sum / static_cast<double>(tokens.size() - 1);
}

using LessonRow24 = RealModels;

// Computed in float64 by an independent implementation: positions that restart at 0 in cached
// decoding move logits by up to 20.4 and the loss from 1.316 to 4.957.
TEST_F(LessonRow24, PositionsBehindACacheGoOn) {
  const std::string path = data_ + "stories260K.bin", vocabulary = data_ + "tok512.bin";
  const LoadedModel right = Load(path, vocabulary);
  const Kernels faulty = *PlantedKernels("position_restart", SimdKernels());
  const LoadedModel restarting = *LoadModel(path, faulty, vocabulary);
  std::vector<int32_t> tokens = *(*right.tokenizer)->Encode(Stories().front());
  tokens.insert(tokens.begin(), *(*right.tokenizer)->bos());
  const std::vector<float> whole = FullLogits(*right.model, tokens, 1);
  EXPECT_TRUE(SameBits(ThroughACache(*right.model, tokens), whole));
  EXPECT_NEAR(MeanLoss(whole, tokens), 1.3160, 5e-5);
  const std::vector<float> wrong = ThroughACache(*restarting.model, tokens);
  EXPECT_NEAR(MeanLoss(wrong, tokens), 4.957, 6e-4);
  double worst = 0;
  for (size_t i = 0; i < whole.size(); ++i)
    worst = std::max(worst, double(std::abs(wrong[i] - whole[i])));
  EXPECT_NEAR(worst, 20.4, 0.05);
}

// A file of {"name": {"shape", "data" in base64}}.
struct Base64Tensors {
  nlohmann::json json;
  explicit Base64Tensors(const std::string& path) : json(nlohmann::json::parse(ReadText(path))) {}

  std::vector<int64_t> Shape(const std::string& name) const { return json.at(name).at("shape"); }
  std::vector<float> Values(const std::string& name) const {
    const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string bytes;
    uint32_t bits = 0, count = 0;
    for (const char c : json.at(name).at("data").get<std::string>()) {
      if (c == '=') break;
      bits = bits << 6 | static_cast<uint32_t>(digits.find(c));
      if ((count += 6) < 8) continue;
      bytes += static_cast<char>(bits >> (count -= 8));
    }
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    return values;
  }
};

// minGPT's gpt-nano that sorts six digits, as a folder with minGPT's names and layout.
class SortModel : public RealModels {
 protected:
  std::unique_ptr<Gpt> Sorter(int64_t n_layer) {
    const Base64Tensors file(data_ + "gpt-nano-sort-model.json");
    WriteText(folder_ / "config.json", nlohmann::json{{"model_type", "gpt2"},
                                                      {"n_layer", n_layer},
                                                      {"n_head", 3},
                                                      {"n_embd", 48},
                                                      {"n_positions", 11},
                                                      {"vocab_size", 3},
                                                      {"tie_word_embeddings", false}}
                                           .dump());
    std::vector<std::vector<float>> values;
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, entry] : file.json.items()) {
      const std::string last = "h." + std::to_string(n_layer);  // layers from here on stay out
      if (name == "config" || (name.substr(12, 4) >= last && name.substr(12, 2) == "h.")) continue;
      values.push_back(file.Values(name));
      tensors.push_back({name, DType::kF32, file.Shape(name), values.back().data()});
    }
    EXPECT_TRUE(WriteSafetensors(folder_ / "model.safetensors", tensors, {}, true));
    return std::move(Load(folder_.path(), "").model);
  }
  TemporaryFolder folder_;
};

TEST_F(SortModel, EveryInputIsSorted) {
  const auto model = Sorter(3);
  constexpr int64_t kInputs = 729;
  std::vector<int32_t> rows(kInputs * 6);
  for (int32_t i = 0; i < kInputs; ++i) {
    for (int32_t digit = 0, rest = i; digit < 6; ++digit, rest /= 3) rows[i * 6 + digit] = rest % 3;
  }
  const std::vector<int32_t> inputs = rows;
  for (int64_t T = 6; T < 12; ++T) {
    const std::vector<float> logits = FullLogits(*model, rows, kInputs);
    std::vector<int32_t> longer;
    for (int64_t i = 0; i < kInputs; ++i) {
      longer.insert(longer.end(), &rows[i * T], &rows[i * T] + T);
      const float* last = &logits[(i * T + T - 1) * 3];
      longer.push_back(static_cast<int32_t>(std::max_element(last, last + 3) - last));
    }
    rows = std::move(longer);
    // Only eleven positions: the twelfth token is never read.
    if (T == 11) break;
  }
  int64_t sorted = 0;
  for (int64_t i = 0; i < kInputs; ++i) {
    std::vector<int32_t> want(&inputs[i * 6], &inputs[i * 6] + 6);
    std::ranges::sort(want);
    sorted += std::equal(want.begin(), want.end(), &rows[i * 12 + 6]);
  }
  EXPECT_EQ(sorted, kInputs);
}

// A tensor that the last layer left behind.
std::span<const float> Scratch(const Plan& plan, const std::string& name) {
  for (size_t i = 0; i < plan.tensors().size(); ++i) {
    if (plan.tensors()[i].name != name) continue;
    return {plan.data(i), static_cast<size_t>(plan.tensors()[i].elements())};
  }
  return {};
}

TEST_F(SortModel, EveryIntermediateOfTheFirstBlockAgrees) {
  const Base64Tensors partials(data_ + "gpt-nano-sort-t0-partials.json");
  const std::vector<int32_t> tokens = Cast<int32_t>(partials.Values("idx"));
  constexpr int64_t kB = 3, kT = 11, kC = 48;
  const auto model = Sorter(1);
  const Pass pass = model->NewPass(kB, kT);
  const Taps taps = *Taps::Run(*model, pass, tokens);
  const auto expect = [&](const std::string& name, std::span<const float> got) {
    const std::vector<float> want = partials.Values(name);
    ASSERT_EQ(got.size(), want.size()) << name;
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << name << " " << i;
  };
  const std::span<const float> x = taps.Find("embedded"), middle = taps.Find("h.0.middle"),
                               output = taps.Find("h.0.output"), qkv = taps.Find("h.0.attn.qkv");
  expect("x", x);
  std::vector<float> normed(kB * kT * kC), mean(kB * kT), rstd(kB * kT);
  const Block& block = model->blocks()[0];
  block.norm_1.Forward(pass, x.data(), kB * kT, {mean.data(), rstd.data()}, normed.data());
  expect("ln1", normed);
  expect("qkv", qkv);
  expect("y", taps.Find("h.0.attn.merged"));
  expect("attnResid", middle);
  block.norm_2.Forward(pass, middle.data(), kB * kT, {mean.data(), rstd.data()}, normed.data());
  expect("ln2", normed);
  expect("fc", taps.Find("h.0.mlp.fc"));
  expect("gelu", Scratch(taps.plan(), "h.0.mlp.h"));
  expect("mlpResid", output);
  std::vector<float> difference(kB * kT * kC);
  for (size_t i = 0; i < difference.size(); ++i) difference[i] = middle[i] - x[i];
  expect("yProj", difference);
  for (size_t i = 0; i < difference.size(); ++i) difference[i] = output[i] - middle[i];
  expect("mlp", difference);

  AttentionArgs<> args{kB, kT, kT, 3, 3, 16};
  args.scale = 0.25f;
  args.q = qkv.data();
  args.k = args.q + kC;
  args.v = args.k + kC;
  args.q_row = args.kv_row = 3 * kC;
  args.q_batch = args.kv_batch = kT * 3 * kC;
  args.kv_head = 16;
  std::vector<float> z(kB * kT * kC), scores(kB * 3 * kT * kT), pattern(scores.size());
  args.z = z.data();
  reference::AttentionTrace(args, scores.data(), pattern.data());
  expect("attSm", pattern);
  const std::vector<float> theirs = partials.Values("att");
  for (size_t i = 0; i < scores.size(); ++i) {
    const bool both_hidden = scores[i] == theirs[i];
    if (!both_hidden) {
      ASSERT_NEAR(scores[i], theirs[i], 1e-6) << i;
    }
  }
}

TEST_F(SortModel, TheWholeModelAgrees) {
  const Base64Tensors partials(data_ + "gpt-nano-sort-t0-partials.json");
  const auto model = Sorter(3);
  const std::vector<float> logits = FullLogits(*model, Cast<int32_t>(partials.Values("idx")), 3);
  const std::vector<float> want = partials.Values("lm_head");
  ASSERT_EQ(logits.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(logits[i], want[i], 1e-5) << i;
}

}  // namespace
}  // namespace heed
