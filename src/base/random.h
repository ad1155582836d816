// Counter-based random numbers: every draw is a function of (seed, step, tensor, index), so that
// dropout masks, batches and initial weights depend on no thread, order or history.
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace heed {

struct RandomKey {
  uint64_t seed = 0;
  uint32_t step = 0;    // iteration, or 0
  uint32_t tensor = 0;  // what the numbers are for; see RandomStream
};

// The purposes that draw numbers at the same (seed, step); layers add their index to kDropout.
enum RandomStream : uint32_t {
  kInitStream = 0x1000'0000,
  kBatchStream = 0x2000'0000,
  kDropoutStream = 0x3000'0000,
  kSampleStream = 0x4000'0000,
  kTextStream = 0x5000'0000,
};

// The four 32-bit words of block `block`: words 4·block .. 4·block+3 of the key's sequence.
inline std::array<uint32_t, 4> RandomBlock(const RandomKey& key, uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = key.step, c3 = key.tensor;
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {c0, c1, c2, c3};
}

inline uint32_t RandomBits(const RandomKey& key, uint64_t index) {
  return RandomBlock(key, index / 4)[index % 4];
}

// Uniform in [0, 1) with 24 bits.
inline float RandomUniform(const RandomKey& key, uint64_t index) {
  return static_cast<float>(RandomBits(key, index) >> 8) * 0x1p-24f;
}

// Uniform in [0, 1) with 53 bits; uses words 2·index and 2·index+1.
inline double RandomUniform53(const RandomKey& key, uint64_t index) {
  const auto words = RandomBlock(key, index / 2);
  const uint64_t high = words[index % 2 * 2], low = words[index % 2 * 2 + 1];
  return static_cast<double>(((high << 32) | low) >> 11) * 0x1p-53;
}

// Standard normal by the Box-Muller transform in double.
inline double RandomNormal(const RandomKey& key, uint64_t index) {
  const uint64_t pair = index / 2;
  const double u = 1.0 - RandomUniform53(key, 2 * pair);  // (0, 1]
  const double angle = 6.283185307179586 * RandomUniform53(key, 2 * pair + 1);
  const double radius = std::sqrt(-2.0 * std::log(u));
  return index % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
}

// Uniform integer in [0, n), n > 0, by multiplication; the bias is below n / 2^64.
inline uint64_t RandomBelow(const RandomKey& key, uint64_t index, uint64_t n) {
  const auto words = RandomBlock(key, index / 2);
  const uint64_t r = (uint64_t{words[index % 2 * 2]} << 32) | words[index % 2 * 2 + 1];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(r) * n) >> 64);
}

}  // namespace heed
