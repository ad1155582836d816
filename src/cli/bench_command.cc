#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "base/buffer.h"
#include "base/memory.h"
#include "base/nearest.h"
#include "base/parallel.h"
#include "base/plural.h"
#include "cli/command.h"
#include "cli/json.h"
#include "cli/precision.h"
#include "infer/cache.h"
#include "kernels/simd/matmul.h"
#include "model/flops.h"
#include "model/gpt.h"
#include "optim/adamw.h"
#include "report/format.h"

namespace heed {
namespace {

// GPT-2 blocks with learned positions, biases and a tied head, as bench/torch_gpt.py has them.
struct Workload {
  std::string_view name;
  int64_t layers, heads, width, block, batch, vocab;
};

constexpr Workload kWorkloads[] = {
    {"femto", 1, 1, 2, 16, 32, 10},
    {"pico", 3, 3, 6, 16, 32, 10},
    {"char-small", 4, 4, 128, 64, 12, 65},
    {"gpt-mini", 6, 6, 192, 128, 16, 512},
    {"char-baby", 6, 6, 384, 256, 8, 65},
    {"gpt2-b4t64", 12, 12, 768, 64, 4, 50257},
    {"gpt2-b1t512", 12, 12, 768, 512, 1, 50257},
};

enum class BenchMode { kTrain, kPrefill, kDecode, kAttention };
std::span<const EnumName<BenchMode>> EnumNames(BenchMode) {
  static constexpr EnumName<BenchMode> kNames[] = {{BenchMode::kTrain, "train"},
                                                   {BenchMode::kPrefill, "prefill"},
                                                   {BenchMode::kDecode, "decode"},
                                                   {BenchMode::kAttention, "attention"}};
  return kNames;
}

struct BenchSettings {
  std::vector<std::string> workload = {"femto", "pico", "char-small", "gpt-mini"};
  BenchMode mode = BenchMode::kTrain;
  Precision dtype = Precision::kF32;
  bool recompute = false;
  double seconds = 3;
  // In place of the workload's where not 0.
  int64_t n_layer = 0, n_head = 0, n_embd = 0, block_size = 0, batch_size = 0, vocab_size = 0;
  int64_t n_kv_head = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("workload", self.workload, "named setting");
    visit("mode", self.mode,
          "training steps, reading a prompt, writing after it, or one layer's attention");
    visit("dtype", self.dtype, kPrecisionHelp);
    visit("recompute", self.recompute,
          "training computes activations again in place of keeping them");
    visit("seconds", self.seconds, "measured time of each");
    visit("n_layer", self.n_layer, "in place of the workload's, as the next five");
    visit("n_head", self.n_head, "attention heads");
    visit("n_embd", self.n_embd, "width");
    visit("block_size", self.block_size, "tokens of a sequence");
    visit("batch_size", self.batch_size, "sequences of a step");
    visit("vocab_size", self.vocab_size, "tokens there are");
    visit("n_kv_head", self.n_kv_head, "key/value heads; as many as attention heads if 0");
  }

  Workload Adjusted(Workload w) const {
    const auto adjust = [](int64_t* to, int64_t given) { *to = given == 0 ? *to : given; };
    adjust(&w.layers, n_layer);
    adjust(&w.heads, n_head);
    adjust(&w.width, n_embd);
    adjust(&w.block, block_size);
    adjust(&w.batch, batch_size);
    adjust(&w.vocab, vocab_size);
    return w;
  }
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What this machine can do at most with the threads in use.
struct Ceilings {
  double flops = 0;  // a second, of multiply-adds on registers
  double bytes = 0;  // a second, read from memory
};

// The best of some tries, for others use the machine too.
Ceilings MeasureCeilings(Arithmetic arithmetic) {
  constexpr int kTries = 10;
  constexpr int64_t kPieces = 64, kRounds = 50000;
  constexpr size_t kBytes = size_t{256} << 20;
  constexpr int64_t kPiece = kBytes / sizeof(float) / kPieces;
  Ceilings best;
  const auto attempt = [&](double* rate, double each, const auto& body) {
    for (int i = 0; i < kTries; ++i) {
      const double start = Now();
      ParallelFor(kPieces, body);
      *rate = std::max(*rate, each * kPieces / (Now() - start));
    }
  };
  const double flops = simd::MultiplyAdds(arithmetic, kRounds);
  attempt(&best.flops, flops, [&](int64_t) { simd::MultiplyAdds(arithmetic, kRounds); });
  Buffer memory(kBytes);
  if (memory.data() == nullptr) return best;
  std::fill_n(memory.floats(), kPieces * kPiece, 1.0f);
  attempt(&best.bytes, sizeof(float) * kPiece,
          [&](int64_t p) { SimdKernels().sum_squares(memory.floats() + p * kPiece, kPiece); });
  return best;
}

struct Measurement {
  std::vector<double> seconds;  // of each repetition
  int64_t tokens = 0;           // in a repetition
  // Of a repetition: the operations that the mathematics needs (model/flops.h), and the bytes that
  // must come from or go to memory if nothing but the largest arrays leaves the caches.
  double flops = 0, bytes = 0;
  double first_loss = 0, last_loss = 0;
};

class Bench {
 public:
  Bench(const Workload& workload, const GlobalOptions& globals, const BenchSettings& settings)
      : w_(workload), globals_(globals), settings_(settings) {}

  Result<Measurement> Run() {
    const BenchMode mode = settings_.mode;
    if (w_.batch < 1 || w_.batch > kMostSequences) {
      return BadRequest("--batch-size", fmt::format("{}", w_.batch),
                        fmt::format("1 to {}", kMostSequences));
    }
    ModelConfig config;
    config.n_layer = w_.layers;
    config.n_head = w_.heads;
    config.n_kv_head = settings_.n_kv_head;
    config.n_embd = w_.width;
    config.block_size = mode == BenchMode::kDecode ? std::max(w_.block, kPrompt + kNew) : w_.block;
    config.vocab_size = w_.vocab;
    if (mode == BenchMode::kAttention) {
      HEED_TRY(config.Resolve());
      return Attend(config);
    }
    HEED_ASSIGN(model_,
                Gpt::Create(config, globals_.reference ? ReferenceKernels() : SimdKernels()));
    model_->Initialize(static_cast<uint64_t>(globals_.seed));
    if (mode == BenchMode::kTrain) {
      SetArithmetic(settings_.dtype, model_.get());
    } else if (const std::optional<BlockType> type = PackedType(WeightsOf(settings_.dtype))) {
      HEED_TRY(model_->PackWeights(*type));
    }
    MakeTokens();
    switch (mode) {
      case BenchMode::kTrain:
        return Train();
      case BenchMode::kPrefill:
        return Prefill();
      case BenchMode::kDecode:
        return Decode();
      case BenchMode::kAttention:
        break;
    }
    return {};
  }

 private:
  static constexpr int64_t kPrompt = 16, kNew = 128, kMostSequences = 1 << 20;

  double ParameterBytes() const {
    const std::optional<BlockType> packed =
        settings_.mode == BenchMode::kTrain ? std::nullopt : PackedType(WeightsOf(settings_.dtype));
    const BlockSize size = SizeOf(packed.value_or(BlockType::kF32));
    return static_cast<double>(size.bytes) / static_cast<double>(size.elements) *
           static_cast<double>(model_->parameters().elements());
  }

  // A stream with something to learn: each token follows from the one before.
  void MakeTokens() {
    const RandomKey key{1, 0, kTextStream};
    stream_ = {1};
    for (int64_t i = 0; i < w_.block * w_.batch * 8; ++i) {
      const auto noise = static_cast<int64_t>(RandomBelow(key, static_cast<uint64_t>(i), 3));
      stream_.push_back(static_cast<int32_t>((stream_.back() * 5 + 7 + noise) % w_.vocab));
    }
  }

  // Repeats `body` for the measured time, at least three times, after three more.
  template <class Body>
  std::vector<double> Repeat(const Body& body) const {
    constexpr int kWarm = 3;
    std::vector<double> times;
    double end = 0;
    for (int i = 0; i < 2 * kWarm || Now() < end; ++i) {
      if (i == kWarm) end = Now() + settings_.seconds;
      const double start = Now();
      body();
      if (i >= kWarm) times.push_back(Now() - start);
    }
    return times;
  }

  Result<Measurement> Train() {
    const int64_t B = w_.batch, T = w_.block;
    HEED_ASSIGN(const auto adamw, Adamw::Create(&model_->parameters()));
    HEED_ASSIGN(const auto activations,
                Activations::Create(*model_, B, T, /*training=*/true, settings_.recompute));
    const bool in_pass = !activations->narrow();
    HEED_TRY(model_->parameters().AllocateGradients(/*share_linear=*/in_pass));
    constexpr double kRate = 1e-3;
    const AdamwSettings settings{.beta2 = 0.99, .grad_clip = 0};
    std::vector<int32_t> tokens(B * T), targets(B * T);
    Measurement m;
    m.tokens = B * T;
    m.flops = static_cast<double>(TrainingStepFlops(*model_, B, T));
    // A parameter is read twice and its gradient written; AdamW reads four numbers and writes
    // three. What is kept for backward is written and read.
    m.bytes = 10 * ParameterBytes();
    for (const PlannedTensor& tensor : activations->plan().tensors()) {
      if (activations->plan().Keeps(tensor.lifetime)) {
        m.bytes += 2.0 * static_cast<double>(tensor.bytes());
      }
    }
    const auto step = [&] {
      const RandomKey key{1, static_cast<uint32_t>(adamw->steps()), kBatchStream};
      for (int64_t b = 0; b < B; ++b) {
        const auto at = static_cast<int64_t>(RandomBelow(key, b, stream_.size() - T - 1));
        std::copy_n(stream_.begin() + at, T, tokens.begin() + b * T);
        std::copy_n(stream_.begin() + at + 1, T, targets.begin() + b * T);
      }
      Pass pass = model_->NewPass(B, T);
      pass.training = true;
      UpdateInPass update{adamw->NextInPass(settings, kRate)};
      if (in_pass) pass.update = &update;
      const double loss = model_->LossAndBackward(
          pass, tokens.data(), targets.data(), 1.0f / static_cast<float>(B * T), activations.get());
      adamw->Step(model_->kernels(), settings, kRate, 0);
      m.last_loss = loss / static_cast<double>(B * T);
      if (adamw->steps() == 1) m.first_loss = m.last_loss;
    };
    m.seconds = Repeat(step);
    return m;
  }

  // Forward and backward of the attention of one layer, from q, k, v [B, T, H, D] to their
  // gradients.
  Result<Measurement> Attend(const ModelConfig& config) {
    const int64_t B = w_.batch, T = w_.block, H = config.n_head, D = config.head_dim;
    const int64_t Hkv = config.n_kv_head;
    const int64_t size = B * T * H * D;
    constexpr int64_t kArrays = 8;  // q, k, v, z and their gradients
    Buffer memory(static_cast<size_t>(kArrays * size + B * H * T) * sizeof(float));
    if (memory.data() == nullptr) {
      return BadRequest("memory", "arrays that the system does not give", "", "take smaller sizes");
    }
    const auto array = [&](int64_t i) { return memory.floats() + i * size; };
    const RandomKey key{1, 0, kTextStream};
    for (int64_t i = 0; i < kArrays * size; ++i) {
      memory.floats()[i] = static_cast<float>(RandomUniform(key, static_cast<uint64_t>(i))) - 0.5f;
    }
    AttentionArgs<> args{B, T, T, H, Hkv, D};
    args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(D)));
    args.q = array(0);
    args.k = array(1);
    args.v = array(2);
    args.q_row = H * D;
    args.kv_row = Hkv * D;
    args.q_batch = T * args.q_row;
    args.kv_batch = T * args.kv_row;
    args.kv_head = D;
    args.z = array(3);
    args.lse = array(kArrays);
    args.dz = array(4);
    args.dq = array(5);
    args.dk = array(6);
    args.dv = array(7);
    const Kernels& kernels = globals_.reference ? ReferenceKernels() : SimdKernels();
    Measurement m;
    m.tokens = B * T;
    // Scores and their weighted sum, over the causal half; twice that backward.
    m.flops = 3 * 2.0 * static_cast<double>(B * H * D) * static_cast<double>(T * (T + 1));
    m.bytes = sizeof(float) * static_cast<double>((2 + 4) * (H + Hkv) * B * T * D);
    m.seconds = Repeat([&] {
      kernels.attention_forward(args);
      kernels.attention_backward(args);
    });
    return m;
  }

  Result<Measurement> Prefill() {
    HEED_ASSIGN(const auto activations, Activations::Create(*model_, 1, w_.block, false));
    std::vector<float> logits(w_.vocab);
    Measurement m;
    m.tokens = w_.block;
    m.flops = static_cast<double>(TotalForwardFlops(*model_, 1, w_.block));
    m.bytes = ParameterBytes();
    m.seconds = Repeat([&] {
      const Pass pass = model_->NewPass(1, w_.block);
      const float* x = model_->Forward(pass, stream_.data(), activations.get());
      model_->Logits(pass, x + (w_.block - 1) * w_.width, 1, activations.get(), logits.data());
    });
    return m;
  }

  Result<Measurement> Decode() {
    HEED_ASSIGN(const auto activations, Activations::Create(*model_, 1, kPrompt, false));
    std::vector<float> logits(w_.vocab);
    Measurement m;
    m.tokens = kNew;
    m.flops = static_cast<double>(TotalForwardFlops(*model_, 1, kPrompt + kNew) -
                                  TotalForwardFlops(*model_, 1, kPrompt));
    m.bytes = kNew * ParameterBytes();
    Status status;
    const auto read = [&](KvCache* cache, const int32_t* tokens, int64_t T) {
      Pass pass = model_->NewPass(1, T);
      const auto layers = cache->Extend(0, 1, T, &pass.offsets);
      const float* x = model_->Forward(pass, tokens, activations.get(), layers);
      model_->Logits(pass, x + (T - 1) * w_.width, 1, activations.get(), logits.data());
      return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    };
    double prompt_seconds = 0;
    m.seconds = Repeat([&] {
      auto cache = KvCache::Create(model_->config(), 1, kPrompt + kNew);
      if (!cache) {
        status = tl::make_unexpected(cache.error());
        return;
      }
      const double start = Now();
      int32_t token = read(cache->get(), stream_.data(), kPrompt);
      prompt_seconds = Now() - start;
      for (int64_t i = 0; i < kNew; ++i) token = read(cache->get(), &token, 1);
    });
    HEED_TRY(status);
    // The prompt's share is the same in every repetition.
    for (double& seconds : m.seconds) seconds = std::max(seconds - prompt_seconds, 1e-9);
    return m;
  }

  const Workload w_;
  const GlobalOptions& globals_;
  const BenchSettings& settings_;
  std::unique_ptr<Gpt> model_;
  std::vector<int32_t> stream_;
};

Result<const Workload*> FindWorkload(const std::string& name) {
  std::vector<std::string> known;
  for (const Workload& workload : kWorkloads) {
    if (workload.name == name) return &workload;
    known.emplace_back(workload.name);
  }
  const std::string nearest = NearestName(name, known);
  return BadRequest("--workload", "'" + name + "'", JoinNames(known),
                    nearest.empty() ? "" : "did you mean " + nearest + "?");
}

Result<Verdict> Run(Session& session, const BenchSettings& settings) {
  if (!(settings.seconds > 0 && settings.seconds <= 3600)) {
    return BadRequest("--seconds", fmt::format("{}", settings.seconds), "above 0, at most 3600");
  }
  const bool trains = settings.dtype == Precision::kF32 || settings.dtype == Precision::kBf16;
  if (settings.mode == BenchMode::kTrain && !trains) {
    return BadRequest("--dtype", std::string(NameOf(settings.dtype)), "f32 or bf16 in training");
  }
  std::vector<const Workload*> workloads;
  for (const std::string& name : settings.workload) {
    HEED_ASSIGN(workloads.emplace_back(), FindWorkload(name));
  }
  const bool bf16 = settings.dtype == Precision::kBf16;
  const Ceilings ceilings = MeasureCeilings(bf16 ? Arithmetic::kBf16 : Arithmetic::kF32);
  HEED_TRY(session.terminal.Say(fmt::format(
      "ceilings of {} thread{}: {} {:.0f} GFLOP/s, memory {:.1f} GB/s\n\n", NumThreads(),
      Plural(NumThreads()), NameOf(settings.dtype), ceilings.flops / 1e9, ceilings.bytes / 1e9)));
  HEED_TRY(session.terminal.Say(fmt::format(
      "{:<12} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>7} {:>7} {:>9}\n",
      fmt::format("{} {}", NameOf(settings.mode), NameOf(settings.dtype)), "ms", "least", "most",
      "tokens/s", "GFLOP/s", "ceiling", "GB/s", "ceiling", "peak MiB")));
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Workload* workload : workloads) {
    ForgetPeakMemory();
    HEED_ASSIGN(Measurement m,
                Bench(settings.Adjusted(*workload), session.globals, settings).Run());
    std::sort(m.seconds.begin(), m.seconds.end());
    const double median = m.seconds[m.seconds.size() / 2];
    const double ms = median * 1e3, tokens_per_s = static_cast<double>(m.tokens) / median;
    const double flops = m.flops / median, bytes = m.bytes / median;
    const double peak_mib = static_cast<double>(PeakMemory()) / (1 << 20);
    HEED_TRY(session.terminal.Say(fmt::format(
        "{:<12} {:>9.3f} {:>9.3f} {:>9.3f} {:>9} {:>8.1f} {:>7.0f}% {:>7.2f} {:>6.0f}% {:>9.1f}\n",
        workload->name, ms, m.seconds.front() * 1e3, m.seconds.back() * 1e3,
        FormatQuantity(tokens_per_s), flops / 1e9, 100 * flops / ceilings.flops, bytes / 1e9,
        100 * bytes / ceilings.bytes, peak_mib)));
    rows.push_back({{"workload", workload->name},
                    {"mode", NameOf(settings.mode)},
                    {"dtype", NameOf(settings.dtype)},
                    {"threads", NumThreads()},
                    {"repetitions", m.seconds.size()},
                    {"ms", ms},
                    {"ms_min", m.seconds.front() * 1e3},
                    {"ms_max", m.seconds.back() * 1e3},
                    {"tokens_per_s", tokens_per_s},
                    {"flops", m.flops},
                    {"flops_per_s", flops},
                    {"bytes", m.bytes},
                    {"bytes_per_s", bytes},
                    {"peak_rss_mib", peak_mib}});
    if (settings.mode == BenchMode::kTrain) {
      rows.back()["loss_first"] = m.first_loss;
      rows.back()["loss_last"] = m.last_loss;
    }
  }
  HEED_TRY(session.terminal.Document(DocumentText(
      {{"ceilings", {{"flops_per_s", ceilings.flops}, {"bytes_per_s", ceilings.bytes}}},
       {"rows", rows}})));
  return Verdict::kDone;
}

}  // namespace

Command BenchCommand() {
  Command command;
  command.name = "bench";
  command.summary = "training, prefill and decoding speed on this machine";
  command.explanation =
      "Measures what this machine can do at most: multiply-adds on registers, and reading memory. "
      "Then steps of named settings: forward, backward and AdamW in training, a whole prompt of "
      "block_size in prefill, 128 tokens behind a prompt of 16 in decode. Prints the median, least "
      "and most milliseconds, tokens per second, the arithmetic that the mathematics needs (the "
      "causal half counts once) and the least bytes that memory must move, each beside its "
      "ceiling, and peak memory.";
  command.example = "heed bench\nheed bench --workload char-baby --mode train --threads 2 --json";
  command.takes_reference = true;
  command.declare = [](Options& options) -> CommandBody {
    auto settings = std::make_shared<BenchSettings>();
    options.Bind("Bench", *settings);
    return [settings](Session& session) { return Run(session, *settings); };
  };
  return command;
}

}  // namespace heed
