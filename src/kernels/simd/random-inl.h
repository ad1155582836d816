// The random words of base/random.h, many blocks at a time. Included once per instruction set,
// inside the sources of kernels.
#if defined(HEED_KERNELS_SIMD_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEED_KERNELS_SIMD_RANDOM_INL_H_
#undef HEED_KERNELS_SIMD_RANDOM_INL_H_
#else
#define HEED_KERNELS_SIMD_RANDOM_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "base/random.h"

HWY_BEFORE_NAMESPACE();
namespace heed::simd::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Blocks that RandomWords makes at a time; it writes whole groups.
HWY_INLINE size_t RandomGroup() { return hn::Lanes(hn::ScalableTag<uint64_t>()); }

// words[j] = RandomBits(key, 4 · block + j) for j in [0, 4 · blocks), with `blocks` rounded up to
// whole groups. A block's four counters lie in the low halves of 64-bit lanes, where the widening
// product wants them; what the high halves hold does not matter until the end.
HWY_INLINE void RandomWords(const RandomKey& key, uint64_t block, size_t blocks, uint32_t* words) {
#if HWY_TARGET == HWY_SCALAR  // has no widening product
  for (size_t done = 0; done < blocks; ++done) {
    const auto four = RandomBlock(key, block + done);
    std::copy(four.begin(), four.end(), words + 4 * done);
  }
#else
  const hn::ScalableTag<uint64_t> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const auto product = [&](auto a, auto b) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
  };
  const auto low = hn::Set(d, 0xFFFFFFFFu);
  const auto m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  for (size_t done = 0; done < blocks; done += RandomGroup()) {
    auto c0 = hn::Add(hn::Set(d, block + done), hn::Iota(d, 0));
    auto c1 = hn::ShiftRight<32>(c0);
    auto c2 = hn::Set(d, uint64_t{key.step}), c3 = hn::Set(d, uint64_t{key.tensor});
    uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const auto p0 = product(c0, m0), p1 = product(c2, m1);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, uint64_t{k0}));
      c1 = p1;
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, uint64_t{k1}));
      c3 = p0;
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    const auto first = hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1));
    const auto second = hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3));
    hn::StoreInterleaved2(first, second, d, reinterpret_cast<uint64_t*>(words + 4 * done));
  }
#endif
}

}  // namespace heed::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEED_KERNELS_SIMD_RANDOM_INL_H_
