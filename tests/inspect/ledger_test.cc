#include "inspect/ledger.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "model/flops.h"

namespace heed {
namespace {

constexpr MachineMemory kMachine{int64_t{8} << 30, int64_t{4} << 30};

ModelConfig Config(int64_t n_embd, int64_t n_head, int64_t n_kv_head, int64_t T) {
  ModelConfig config;
  config.n_layer = 1;
  config.n_embd = n_embd;
  config.n_head = n_head;
  config.n_kv_head = n_kv_head;
  config.block_size = T;
  config.vocab_size = 65;
  return config;
}

Ledger Make(const ModelConfig& config, int64_t B, int64_t T,
            const MachineMemory& machine = kMachine) {
  Result<Ledger> ledger = MakeLedger({config, B, T}, machine);
  EXPECT_TRUE(ledger) << (ledger ? "" : ledger.error().Message());
  return *ledger;
}

LedgerTensor Find(const Ledger& ledger, const std::string& name) {
  for (const LedgerTensor& tensor : ledger.tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

void ExpectTensor(const Ledger& ledger, const std::string& name, const std::string& axes,
                  const std::vector<int64_t>& shape, int64_t elements) {
  const LedgerTensor tensor = Find(ledger, name);
  EXPECT_EQ(tensor.axes, axes) << name;
  EXPECT_EQ(tensor.shape, shape) << name;
  EXPECT_EQ(tensor.elements, elements) << name;
  EXPECT_EQ(tensor.bytes, 4 * elements) << name;
}

TEST(LessonRow21, ShapesOfFourQueryHeadsOnTwo) {
  const Ledger ledger = Make(Config(8, 4, 2, 3), 2, 3);
  ExpectTensor(ledger, "embedded", "B T C", {2, 3, 8}, 48);
  ExpectTensor(ledger, "h.0.attn.q", "B H T D", {2, 4, 3, 2}, 48);
  ExpectTensor(ledger, "h.0.attn.k", "B Hkv T D", {2, 2, 3, 2}, 24);
  ExpectTensor(ledger, "h.0.attn.v", "B Hkv T D", {2, 2, 3, 2}, 24);
  ExpectTensor(ledger, "h.0.attn.scores", "B H T S", {2, 4, 3, 3}, 72);
  ExpectTensor(ledger, "h.0.attn.z", "B H T D", {2, 4, 3, 2}, 48);
  ExpectTensor(ledger, "h.0.attn.merged", "B T HD", {2, 3, 8}, 48);
  EXPECT_EQ(ledger.cache_elements, 48);
  EXPECT_EQ(ledger.cache_elements_mha, 96);
  EXPECT_EQ(ledger.measured_cache_bytes, 48 * 4);
}

TEST(LessonRow21, ShapesOfThreeQueryHeadsOnOne) {
  const Ledger ledger = Make(Config(12, 3, 1, 5), 1, 5);
  ExpectTensor(ledger, "h.0.attn.q", "B H T D", {1, 3, 5, 4}, 60);
  ExpectTensor(ledger, "h.0.attn.k", "B Hkv T D", {1, 1, 5, 4}, 20);
  ExpectTensor(ledger, "h.0.attn.v", "B Hkv T D", {1, 1, 5, 4}, 20);
  ExpectTensor(ledger, "h.0.attn.scores", "B H T S", {1, 3, 5, 5}, 75);
  ExpectTensor(ledger, "h.0.attn.merged", "B T HD", {1, 5, 12}, 60);
  EXPECT_EQ(ledger.cache_elements, 40);
}

Parameter FindParameter(const Ledger& ledger, const std::string& name) {
  for (const Parameter& p : ledger.parameters) {
    if (p.name == name) return p;
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

TEST(LessonRow14, ParametersOfPresets) {
  // minGPT's own count leaves out the untied head.
  EXPECT_EQ(Make(FindPreset("gpt-nano")->model, 1, 8).parameter_count, 2546400 + 50257 * 48);
}

TEST(LessonRow15, FemtoAndPico) {
  const std::tuple<const char*, int64_t, int64_t, int64_t> rows[] = {{"femto", 1, 594, 464},
                                                                     {"pico", 3, 3090, 2700}};
  for (const auto& [name, n_head, untied, tied] : rows) {
    ModelConfig config = FindPreset(name)->model;
    config.vocab_size = 65;
    config.block_size = 128;
    const Ledger ledger = Make(config, 1, 7);
    EXPECT_EQ(ledger.parameter_count, untied) << name;
    ExpectTensor(ledger, "h.0.attn.scores", "B H T S", {1, n_head, 7, 7}, n_head * 49);
    ExpectTensor(ledger, "h.0.attn.pattern", "B H T S", {1, n_head, 7, 7}, n_head * 49);
    ExpectTensor(ledger, "h.0.attn.q", "B H T D", {1, n_head, 7, 2}, n_head * 14);
    config.tied = true;
    EXPECT_EQ(Make(config, 1, 7).parameter_count, tied) << name;
  }
}

TEST(LessonRow17, WeightsOfKeysAndValuesShrinkWithTheirHeads) {
  // q, k and v side by side: 12 columns of queries, 2 x n_kv_head x 2 of keys and values.
  for (const int64_t n_kv_head : {6, 3, 2, 1}) {
    const Ledger ledger = Make(Config(12, 6, n_kv_head, 5), 1, 5);
    EXPECT_EQ(FindParameter(ledger, "h.0.attn.c_attn.weight").shape,
              (std::vector<int64_t>{12, 12 + 4 * n_kv_head}));
    EXPECT_EQ(FindParameter(ledger, "h.0.attn.c_proj.weight").shape,
              (std::vector<int64_t>{12, 12}));
  }
}

TEST(LessonRow18, RotaryPositionsHaveNoParameters) {
  ModelConfig config = Config(12, 6, 6, 5);
  const int64_t learned = Make(config, 1, 5).parameter_count;
  config.position = Position::kRope;
  const Ledger rope = Make(config, 1, 5);
  EXPECT_EQ(rope.parameter_count, learned - 5 * 12);
  for (const Parameter& p : rope.parameters) EXPECT_EQ(p.name.find("wpe"), std::string::npos);
}

TEST(LessonRow20, BothRotationsHaveTheHeadsWidth) {
  ModelConfig config = Config(12, 6, 2, 5);
  config.position = Position::kRope;
  const Ledger ledger = Make(config, 3, 5);
  EXPECT_EQ(ledger.config.head_dim, 2);
  EXPECT_EQ(ledger.config.rotary_dim, 2);
  ExpectTensor(ledger, "h.0.attn.q", "B H T D", {3, 6, 5, 2}, 180);
  ExpectTensor(ledger, "h.0.attn.k", "B Hkv T D", {3, 2, 5, 2}, 60);
}

TEST(LessonRow27, CacheBytesOfTheHomeworkModel) {
  ModelConfig config = FindPreset("gpt-mini")->model;
  const Ledger ledger = Make(config, 1, 256);
  ASSERT_EQ(ledger.groupings.size(), 4u);
  const int64_t heads[] = {6, 3, 2, 1}, bytes[] = {2359296, 1179648, 786432, 393216};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(ledger.groupings[i].n_kv_head, heads[i]);
    EXPECT_EQ(ledger.groupings[i].cache_bytes, bytes[i]);
    config.n_kv_head = heads[i];
    EXPECT_EQ(Make(config, 1, 256).measured_cache_bytes, bytes[i]);
  }
  // stories260K: 5 layers, 8 query heads on 4, width 64.
  ModelConfig stories = Config(64, 8, 4, 512);
  stories.n_layer = 5;
  const Ledger small = Make(stories, 1, 512);
  EXPECT_EQ(small.measured_cache_bytes, 655360);
  EXPECT_EQ(small.groupings.front().cache_bytes, 1310720);
  const auto half = MakeLedger({stories, 1, 512, CacheType::kBF16}, kMachine);
  EXPECT_EQ(half->cache_bytes, 655360 / 2);
}

TEST(Ledger, FlopsByHand) {
  const Ledger ledger = Make(Config(8, 4, 2, 3), 2, 3);
  const int64_t rows = 6;
  EXPECT_EQ(Find(ledger, "h.0.attn.qkv").flops, 2 * rows * 8 * 16);
  // Six visible pairs in a triangle of three, for each of 2 x 4 heads of width 2.
  EXPECT_EQ(Find(ledger, "h.0.attn.scores").flops, 2 * 8 * 6 * 2);
  EXPECT_EQ(Find(ledger, "h.0.attn.merged").flops, 2 * 8 * 6 * 2);
  EXPECT_EQ(Find(ledger, "h.0.middle").flops, 2 * rows * 8 * 8);
  EXPECT_EQ(Find(ledger, "h.0.mlp.fc").flops, 2 * rows * 8 * 32);
  EXPECT_EQ(Find(ledger, "h.0.output").flops, 2 * rows * 32 * 8);
  EXPECT_EQ(Find(ledger, "logits").flops, 2 * rows * 8 * 65);
  EXPECT_EQ(ledger.flops_forward, 1536 + 192 + 192 + 768 + 3072 + 3072 + 6240);
  EXPECT_EQ(ledger.flops_training_step, 3 * ledger.flops_forward);
}

RC_GTEST_PROP(Ledger, FlopsOfAllTensorsAreTheTotal, ()) {
  ModelConfig config = Config(24, 6, *rc::gen::element(1, 2, 3, 6), 7);
  config.n_layer = *rc::gen::inRange(1, 4);
  config.mlp = *rc::gen::element(MlpKind::kGelu, MlpKind::kSwiglu);
  const Ledger ledger = *MakeLedger({config, *rc::gen::inRange(1, 4), 7}, kMachine);
  int64_t sum = 0;
  for (const LedgerTensor& tensor : ledger.tensors) sum += tensor.flops;
  RC_ASSERT(sum == ledger.flops_forward);
}

// What the ledger calls views must show the numbers of the pass itself.
TEST(Ledger, ViewsLieInTheBuffersOfTheirTensors) {
  ModelConfig config = Config(12, 6, 2, 5);
  const auto model = *Gpt::Create(config, ReferenceKernels());
  model->Initialize(3);
  const int64_t B = 3, T = 5, H = 6, D = 2;
  const auto activations = *Activations::Create(*model, B, T, /*training=*/true);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  model->Forward(model->NewPass(B, T), tokens.data(), activations.get());
  const Plan& plan = activations->plan();
  const auto view = [&](const std::string& name, int64_t b, int64_t h, int64_t t, int64_t d) {
    for (const DerivedTensor& v : plan.derived()) {
      if (v.name != name) continue;
      return plan.data(*v.of)[v.offset + b * v.strides[0] + h * v.strides[1] + t * v.strides[2] +
                              d * v.strides[3]];
    }
    ADD_FAILURE() << name;
    return 0.0f;
  };
  // z is what attention over the views q, k and v gives, computed here from its definition.
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t t = 0; t < T; ++t) {
        double weights = 0, z[2] = {0, 0};
        for (int64_t s = 0; s <= t; ++s) {
          double score = 0;
          for (int64_t d = 0; d < D; ++d) {
            score += view("h.0.attn.q", b, h, t, d) * view("h.0.attn.k", b, h / 3, s, d);
          }
          const double weight = std::exp(score / std::sqrt(2.0));
          weights += weight;
          for (int64_t d = 0; d < D; ++d) z[d] += weight * view("h.0.attn.v", b, h / 3, s, d);
        }
        for (int64_t d = 0; d < D; ++d) {
          EXPECT_NEAR(view("h.0.attn.z", b, h, t, d), z[d] / weights, 1e-6);
        }
      }
    }
  }
}

// What stands where q and k stood once a pass has run is what rotation makes of them: a model
// without positions keeps the ones before it, for its weights are the same.
TEST(Ledger, RotatedQueriesAndKeysLieInPlaceOfTheOthers) {
  ModelConfig config = Config(24, 3, 1, 5);
  const int64_t B = 2, T = 5, D = 8;
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const auto numbers = [&](Position position, const char* name, int64_t heads) {
    config.position = position;
    const auto model = *Gpt::Create(config, ReferenceKernels());
    model->Initialize(3);
    const auto activations = *Activations::Create(*model, B, T, /*training=*/false);
    model->Forward(model->NewPass(B, T), tokens.data(), activations.get());
    const Plan& plan = activations->plan();
    const auto view = std::ranges::find(plan.derived(), name, &DerivedTensor::name);
    std::vector<float> out;
    for (int64_t i = 0; i < B * heads * T * D; ++i) {
      const int64_t at[] = {i / (heads * T * D), i / (T * D) % heads, i / D % T, i % D};
      int64_t place = view->offset;
      for (int axis = 0; axis < 4; ++axis) place += at[axis] * view->strides[axis];
      out.push_back(plan.data(*view->of)[place]);
    }
    return out;
  };
  for (const auto& [name, heads] : {std::pair("q", 3), std::pair("k", 1)}) {
    const std::string before = std::string("h.0.attn.") + name, after = before + "_rot";
    const std::vector<float> x = numbers(Position::kNone, before.c_str(), heads);
    const std::vector<float> y = numbers(Position::kRope, after.c_str(), heads);
    EXPECT_EQ(y, numbers(Position::kRope, before.c_str(), heads));
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t t = i / 8 % 5, d = i % 8, first = i - d + d % 4;
      const double angle =
          static_cast<double>(t) * std::pow(10000, -static_cast<double>(d % 4) / 4);
      const double want = d < 4 ? x[first] * std::cos(angle) - x[first + 4] * std::sin(angle)
                                : x[first] * std::sin(angle) + x[first + 4] * std::cos(angle);
      EXPECT_NEAR(y[i], want, 1e-6) << name << i;
    }
    const LedgerTensor row = Find(Make(config, B, T), after);
    EXPECT_EQ(row.memory, "in place of " + before);
    EXPECT_EQ(row.shape, (std::vector<int64_t>{B, heads, T, D}));
    EXPECT_FALSE(row.copy);
  }
}

TEST(Ledger, TellsViewsFromCopiesAndReuse) {
  const Ledger ledger = Make(Config(8, 4, 2, 3), 2, 3);
  for (const char* name : {"q", "k", "v"}) {
    const LedgerTensor tensor = Find(ledger, std::string("h.0.attn.") + name);
    EXPECT_FALSE(tensor.copy);
    EXPECT_EQ(tensor.memory, "view of h.0.attn.qkv");
  }
  EXPECT_EQ(Find(ledger, "h.0.attn.z").memory, "view of h.0.attn.merged");
  EXPECT_EQ(Find(ledger, "h.0.attn.scores").memory, "never held");
  EXPECT_EQ(std::ranges::count(ledger.tensors, "h.0.attn.q_rot", &LedgerTensor::name), 0);
  EXPECT_EQ(Find(ledger, "h.0.output").memory, "reuses embedded");
  EXPECT_TRUE(Find(ledger, "h.0.attn.qkv").copy);
}

TEST(Ledger, TheSmallestChangeFitsAndTheNextLargerDoesNot) {
  using Changes = std::vector<std::string>;
  ModelConfig config = Config(64, 4, 4, 128);
  config.n_layer = 4;
  const auto changes = [](const ModelConfig& model, int64_t B, int64_t T, int64_t limit) {
    return Make(model, B, T, {limit, limit}).changes;
  };
  const auto same = [](const ModelConfig& model, int64_t B, int64_t T, int64_t limit) {
    return Make(model, B, T, {limit, limit}).same_updates;
  };
  const auto kept = [](const ModelConfig& model, int64_t B, int64_t T) {
    return Make(model, B, T).training.total();
  };
  const auto again = [](const ModelConfig& model, int64_t B, int64_t T) {
    return Make(model, B, T).recompute_bytes;
  };
  const int64_t full = kept(config, 16, 128), five = kept(config, 5, 128);
  EXPECT_TRUE(Make(config, 16, 128, {full, full}).fits);
  EXPECT_EQ(changes(config, 16, 128, full), Changes());
  EXPECT_EQ(changes(config, 16, 128, full - 1),
            (Changes{"--batch-size 8 --grad-accum 2", "--recompute"}));
  ASSERT_LT(five, again(config, 16, 128));
  // Five sequences fit, but no update of 16 is made of fives.
  EXPECT_EQ(changes(config, 16, 128, five), Changes{"--batch-size 4 --grad-accum 4"});
  EXPECT_EQ(changes(config, 15, 128, five), Changes{"--batch-size 5 --grad-accum 3"});
  EXPECT_EQ(changes(config, 15, 128, five - 1), Changes{"--batch-size 3 --grad-accum 5"});
  // One sequence is the least: it may be computed again, and then be shorter.
  const int64_t one = kept(config, 1, 128);
  EXPECT_EQ(changes(config, 1, 128, one - 1), Changes{"--recompute"});
  ASSERT_LE(again(config, 1, 128), one - 1);
  EXPECT_EQ(changes(config, 3, 128, again(config, 1, 128)),
            Changes{"--batch-size 1 --grad-accum 3 --recompute"});
  EXPECT_TRUE(same(config, 3, 128, again(config, 1, 128)));
  ModelConfig short_one = config;
  short_one.block_size = 77;
  EXPECT_EQ(changes(config, 16, 128, again(short_one, 1, 77)),
            Changes{"--batch-size 1 --grad-accum 16 --block-size 77 --recompute"});
  EXPECT_FALSE(same(config, 16, 128, again(short_one, 1, 77)));
  ModelConfig three = config;
  three.n_layer = 3;
  // Three layers take less than four at any length.
  const int64_t layers = again(three, 1, 2);
  ASSERT_LT(layers, again(config, 1, 1));
  ASSERT_LT(layers, kept(three, 1, 2));
  EXPECT_EQ(changes(config, 16, 2, layers),
            Changes{"--batch-size 1 --grad-accum 16 --n-layer 3 --recompute"});
  EXPECT_EQ(changes(config, 16, 2, kept(three, 1, 2)),
            Changes{"--batch-size 1 --grad-accum 16 --n-layer 3"});
  EXPECT_EQ(changes(config, 16, 128, 1), Changes{"a narrower model: one layer of it does not fit"});
}

TEST(Ledger, AModelBeyondTheMachineIsStillLedgered) {
  const Ledger ledger = Make(FindPreset("gpt2-xl")->model, 4096, 1024, kMachine);
  EXPECT_FALSE(ledger.fits);
  EXPECT_FALSE(ledger.changes.empty());
  EXPECT_EQ(Find(ledger, "h.47.attn.scores").elements, int64_t{4096} * 25 * 1024 * 1024);
}

TEST(Ledger, WrongSizesAreRefused) {
  const ModelConfig config = Config(8, 4, 2, 3);
  const auto where = [&](int64_t B, int64_t T) {
    const auto ledger = MakeLedger({config, B, T}, kMachine);
    return ledger ? "" : ledger.error().where;
  };
  EXPECT_EQ(where(0, 3), "--batch-size");
  EXPECT_EQ(where(-1, 3), "--batch-size");
  EXPECT_EQ(where(1, 0), "--seq");
  EXPECT_EQ(where(1, 4), "--seq");
  ModelConfig uneven = config;
  uneven.n_kv_head = 3;
  EXPECT_EQ(MakeLedger({uneven, 1, 3}, kMachine).error().where, "n_kv_head");
  ModelConfig huge = Config(1 << 20, 4, 4, 1 << 24);
  EXPECT_EQ(MakeLedger({huge, 1 << 24, 1 << 24}, kMachine).error().where, "--batch-size");
}

}  // namespace
}  // namespace heed
