// GFLOP/s of the matrix product on one thread, by that thread's CPU time, at the shapes of GPTs:
// forward (NN), head and input gradients (NT), weight gradients (TN), and decoding (few rows).
#include <benchmark/benchmark.h>

#include <string>

#include "base/buffer.h"
#include "base/parallel.h"
#include "kernels/simd/matmul.h"

namespace heed {
namespace {

enum class Layout { kNN, kNT, kTN };
enum class Extra { kNone, kBias, kGelu, kResidual, kGeluBackward, kAccumulate };
enum class Form { kF32, kBf16, kPackedBf16, kQ8_0, kQ4_0 };

void Fill(Buffer& buffer) {
  const int64_t n = static_cast<int64_t>(buffer.size() / sizeof(float));
  for (int64_t i = 0; i < n; ++i) {
    buffer.floats()[i] = static_cast<float>(i * 7919 % 1000) * 1e-3f - 0.5f;
  }
}

void Run(benchmark::State& state, int64_t M, int64_t N, int64_t K, Layout layout, Extra extra,
         Form form) {
  SetNumThreads(1);
  Buffer a(M * K * sizeof(float)), b(K * N * sizeof(float)), c(M * N * sizeof(float)),
      aux(M * N * sizeof(float)), bias(N * sizeof(float));
  for (Buffer* buffer : {&a, &b, &c, &aux, &bias}) Fill(*buffer);
  MatmulArgs<> args;
  args.M = M, args.N = N, args.K = K, args.ldc = N;
  args.a = a.floats(), args.b = b.floats(), args.c = c.floats();
  args.a_row = layout == Layout::kTN ? 1 : K, args.a_col = layout == Layout::kTN ? M : 1;
  args.b_row = layout == Layout::kNT ? 1 : N, args.b_col = layout == Layout::kNT ? K : 1;
  if (extra == Extra::kBias || extra == Extra::kGelu || extra == Extra::kResidual) {
    args.bias = bias.floats();
  }
  if (extra == Extra::kResidual) args.residual = args.c;
  if (extra == Extra::kGelu) args.epilogue = Epilogue::kGelu, args.aux = aux.floats();
  if (extra == Extra::kGeluBackward) {
    args.epilogue = Epilogue::kGeluBackward, args.aux = aux.floats();
  }
  args.accumulate = extra == Extra::kAccumulate;
  args.arithmetic = form == Form::kF32 ? Arithmetic::kF32 : Arithmetic::kBf16;
  Buffer packed;
  if (form >= Form::kPackedBf16) {
    const BlockType type = form == Form::kPackedBf16 ? BlockType::kBF16
                           : form == Form::kQ8_0     ? BlockType::kQ8_0
                                                     : BlockType::kQ4_0;
    if (type != BlockType::kBF16) args.arithmetic = Arithmetic::kInt8;
    packed = Buffer(PackedBytes(type, K, N));
    PackFloats(type, K, N, args.b, args.b_row, args.b_col, packed.data());
    args.packed = {type, K, N, packed.data()};
  }
  for (auto _ : state) {
    simd::Matmul(args);
    benchmark::ClobberMemory();
  }
  const double calls = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * M * N * K * calls, benchmark::Counter::kIsRate);
  state.counters["B_GB/s"] = benchmark::Counter(4e-9 * N * K * calls, benchmark::Counter::kIsRate);
}

int Register() {
  static constexpr struct {
    int64_t M, N, K;
    Layout layout;
    Extra extra;
  } kShapes[] = {
      // char-small: width 128, B·T = 768.
      {768, 384, 128, Layout::kNN, Extra::kBias},
      {768, 512, 128, Layout::kNN, Extra::kGelu},
      {768, 128, 512, Layout::kNN, Extra::kResidual},
      {768, 512, 128, Layout::kNT, Extra::kGeluBackward},
      {768, 128, 512, Layout::kNT, Extra::kNone},
      {128, 512, 768, Layout::kTN, Extra::kNone},
      {768, 65, 128, Layout::kNT, Extra::kNone},
      // char-baby: width 384, B·T = 2048.
      {2048, 1536, 384, Layout::kNN, Extra::kNone},
      {2048, 1536, 384, Layout::kNN, Extra::kGelu},
      {2048, 384, 1536, Layout::kNN, Extra::kResidual},
      {2048, 1536, 384, Layout::kNT, Extra::kGeluBackward},
      {2048, 384, 1536, Layout::kNT, Extra::kNone},
      {384, 1536, 2048, Layout::kTN, Extra::kAccumulate},
      // GPT-2 124M: width 768, B·T = 256.
      {256, 2304, 768, Layout::kNN, Extra::kBias},
      {256, 3072, 768, Layout::kNN, Extra::kGelu},
      {256, 768, 3072, Layout::kNN, Extra::kResidual},
      {256, 768, 3072, Layout::kNT, Extra::kNone},
      {768, 3072, 256, Layout::kTN, Extra::kAccumulate},
      {256, 50257, 768, Layout::kNT, Extra::kNone},
      // Teaching sizes.
      {512, 6, 6, Layout::kNN, Extra::kNone},
      {512, 18, 6, Layout::kNN, Extra::kBias},
      {512, 6, 18, Layout::kNT, Extra::kNone},
      {6, 18, 512, Layout::kTN, Extra::kNone},
      {192, 192, 48, Layout::kNN, Extra::kGelu},
      // Decoding.
      {1, 768, 768, Layout::kNN, Extra::kBias},
      {1, 3072, 768, Layout::kNN, Extra::kBias},
      {1, 768, 3072, Layout::kNN, Extra::kBias},
      {1, 3072, 768, Layout::kNT, Extra::kBias},
      {1, 50257, 768, Layout::kNT, Extra::kNone},
      {8, 768, 768, Layout::kNN, Extra::kBias},
      {8, 768, 768, Layout::kNT, Extra::kBias},
  };
  static constexpr const char* kForms[] = {"/f32", "/bf16", "/packed_bf16", "/q8_0", "/q4_0"};
  static constexpr const char* kLayouts[] = {"NN", "NT", "TN"};
  static constexpr const char* kExtras[] = {"",          "+bias",          "+gelu",
                                            "+residual", "+gelu_backward", "+accumulate"};
  for (const auto& s : kShapes) {
    for (const Form form : {Form::kF32, Form::kBf16, Form::kPackedBf16, Form::kQ8_0, Form::kQ4_0}) {
      const std::string name = "Matmul/" + std::to_string(s.M) + "x" + std::to_string(s.N) + "x" +
                               std::to_string(s.K) + "/" + kLayouts[static_cast<int>(s.layout)] +
                               kExtras[static_cast<int>(s.extra)] + kForms[static_cast<int>(form)];
      benchmark::RegisterBenchmark(name.c_str(), [s, form](benchmark::State& state) {
        Run(state, s.M, s.N, s.K, s.layout, s.extra, form);
      });
    }
  }
  return 0;
}

const int kRegistered = Register();

}  // namespace
}  // namespace heed
