// How Highway chooses an instruction set when the program runs. These are its own functions of
// these names, and all that its headers want of its library: that one measures the processor's
// clock for three milliseconds whenever it is loaded.
#include <hwy/targets.h>

#include <atomic>
#include <cstdint>

namespace hwy {
namespace {

int64_t Detected() {
  int64_t targets = HWY_EMU128 | HWY_SCALAR | HWY_STATIC_TARGET;
#if HWY_ARCH_X86
  // The operating system's part is asked for, too.
  __builtin_cpu_init();
  const bool sse4 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("aes") &&
                    __builtin_cpu_supports("pclmul");
  // Every processor with these has LZCNT and F16C.
  const bool avx2 = sse4 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd");
  if (sse4) targets |= HWY_SSE4;
  if (avx2) targets |= HWY_AVX2;
  if (avx3) targets |= HWY_AVX3;
#endif
  return targets;
}

std::atomic<int64_t> forced{0};

}  // namespace

int64_t SupportedTargets() {
  static const int64_t detected = Detected();
  const int64_t targets = forced.load();
  return targets == 0 ? detected : targets;
}

void SetSupportedTargetsForTest(int64_t targets) { forced.store(targets); }

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
