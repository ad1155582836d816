#include "verify/planted.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/nearest.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/cross_entropy.h"
#include "kernels/reference/dropout.h"
#include "kernels/reference/embedding.h"
#include "kernels/reference/norm.h"
#include "kernels/reference/rope.h"

namespace heed {
namespace {

// ---- Attention, written down naively with one fault. Scores are kept whole, so that softmax can
// run along the wrong axis.

enum class AttentionFault {
  kMaskMissing,
  kMaskOneTooFar,
  kMaskAdded,
  kMaskWeak,
  kMaskTopLeft,
  kMaskLostInPrefill,
  kScaleMissing,
  kColumnSoftmax,
  kTiledHeads,
  kSummedHeads,
  kMergedUntransposed,
};

template <AttentionFault kFault>
class FaultyAttention {
 public:
  static void Forward(const AttentionArgs<>& a) {
    std::fill_n(a.z, a.B * a.T_ * a.H * a.D, 0.0f);
    for (int64_t b = 0; b < a.B; ++b) {
      for (int64_t h = 0; h < a.H; ++h) FaultyAttention(a, b, h).Attend();
    }
  }

  static void Backward(const AttentionArgs<>& a) {
    for (int64_t b = 0; b < a.B; ++b) {
      for (int64_t s = 0; s < a.S; ++s) {
        for (int64_t i = 0; i < a.Hkv; ++i) {
          const int64_t at = b * a.kv_batch + s * a.kv_row + i * a.kv_head;
          std::fill_n(a.dk + at, a.D, 0.0f);
          std::fill_n(a.dv + at, a.D, 0.0f);
        }
      }
      for (int64_t h = 0; h < a.H; ++h) FaultyAttention(a, b, h).Differentiate();
    }
  }

 private:
  static constexpr bool Is(AttentionFault fault) { return kFault == fault; }

  FaultyAttention(const AttentionArgs<>& a, int64_t b, int64_t h)
      : a_(a), b_(b), h_(h), S_(a.lengths != nullptr ? a.lengths[b] : a.S), pattern_(a.T_ * S_) {
    for (int64_t t = 0; t < a.T_; ++t) {
      for (int64_t s = 0; s < S_; ++s) pattern_[t * S_ + s] = Score(t, s);
    }
    ForEachLine([&](int64_t first, int64_t n, int64_t step) { Softmax(first, n, step); });
  }

  double Scale() const { return Is(AttentionFault::kScaleMissing) ? 1.0 : a_.scale; }
  int64_t Query(int64_t t) const { return b_ * a_.q_batch + t * a_.q_row + h_ * a_.D; }
  int64_t Group() const {
    return Is(AttentionFault::kTiledHeads) ? h_ % a_.Hkv : h_ / (a_.H / a_.Hkv);
  }
  int64_t Key(int64_t s) const { return b_ * a_.kv_batch + s * a_.kv_row + Group() * a_.kv_head; }
  int64_t Merged(int64_t t) const {
    if (Is(AttentionFault::kMergedUntransposed)) return ((b_ * a_.H + h_) * a_.T_ + t) * a_.D;
    const int64_t slot = Is(AttentionFault::kSummedHeads) ? Group() : h_;
    return ((b_ * a_.T_ + t) * a_.H + slot) * a_.D;
  }

  // The scaled and masked score, -inf where the key is hidden.
  double Score(int64_t t, int64_t s) const {
    constexpr double kWeakFill = -50;
    double dot = 0;
    for (int64_t d = 0; d < a_.D; ++d) dot += double(a_.q[Query(t) + d]) * a_.k[Key(s) + d];
    const double score = Scale() * dot;
    int64_t visible = S_ - a_.T_ + t + 1;
    if (Is(AttentionFault::kMaskOneTooFar)) ++visible;
    if (Is(AttentionFault::kMaskTopLeft)) visible = t + 1;
    if (Is(AttentionFault::kMaskMissing)) visible = S_;
    if (Is(AttentionFault::kMaskLostInPrefill) && a_.lengths != nullptr) visible = S_;
    if (Is(AttentionFault::kMaskAdded)) return s < visible ? score + 1 : score;
    if (s < visible) return score;
    return Is(AttentionFault::kMaskWeak) ? score + kWeakFill
                                         : -std::numeric_limits<double>::infinity();
  }

  // The lines that softmax sums over: rows, or columns.
  template <class Body>
  void ForEachLine(const Body& body) const {
    if (Is(AttentionFault::kColumnSoftmax)) {
      for (int64_t s = 0; s < S_; ++s) body(s, a_.T_, S_);
    } else {
      for (int64_t t = 0; t < a_.T_; ++t) body(t * S_, S_, 1);
    }
  }

  void Softmax(int64_t first, int64_t n, int64_t step) {
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t i = 0; i < n; ++i) max = std::max(max, pattern_[first + i * step]);
    for (int64_t i = 0; i < n; ++i) {
      double& x = pattern_[first + i * step];
      x = std::exp(x - max);
      sum += x;
    }
    for (int64_t i = 0; i < n; ++i) pattern_[first + i * step] /= sum;
  }

  void Attend() const {
    for (int64_t t = 0; t < a_.T_; ++t) {
      for (int64_t d = 0; d < a_.D; ++d) {
        double z = 0;
        for (int64_t s = 0; s < S_; ++s) {
          z += pattern_[t * S_ + s] * reference::DropoutFactor(a_, b_, h_, t, s) * a_.v[Key(s) + d];
        }
        a_.z[Merged(t) + d] += static_cast<float>(z);
      }
    }
  }

  // As reference::AttentionBackward, with the sum of A dA over the line that was normalised.
  void Differentiate() const {
    std::vector<double> dscore(pattern_.size());
    for (int64_t t = 0; t < a_.T_; ++t) {
      const float* dz = a_.dz + Merged(t);
      for (int64_t s = 0; s < S_; ++s) {
        const double factor = reference::DropoutFactor(a_, b_, h_, t, s);
        double dot = 0;
        for (int64_t d = 0; d < a_.D; ++d) {
          dot += double(dz[d]) * a_.v[Key(s) + d];
          a_.dv[Key(s) + d] += static_cast<float>(pattern_[t * S_ + s] * factor * dz[d]);
        }
        dscore[t * S_ + s] = factor * dot;
      }
    }
    ForEachLine([&](int64_t first, int64_t n, int64_t step) {
      double sum = 0;
      for (int64_t i = first; i < first + n * step; i += step) sum += pattern_[i] * dscore[i];
      for (int64_t i = first; i < first + n * step; i += step) {
        dscore[i] = Scale() * pattern_[i] * (dscore[i] - sum);
      }
    });
    for (int64_t t = 0; t < a_.T_; ++t) {
      for (int64_t d = 0; d < a_.D; ++d) {
        double dq = 0;
        for (int64_t s = 0; s < S_; ++s) {
          dq += dscore[t * S_ + s] * a_.k[Key(s) + d];
          a_.dk[Key(s) + d] += static_cast<float>(dscore[t * S_ + s] * a_.q[Query(t) + d]);
        }
        a_.dq[Query(t) + d] = static_cast<float>(dq);
      }
    }
  }

  const AttentionArgs<>& a_;
  const int64_t b_, h_, S_;
  std::vector<double> pattern_;  // [T, S]
};

template <AttentionFault kFault>
void PlantAttention(Kernels* kernels) {
  kernels->attention_forward = FaultyAttention<kFault>::Forward;
  kernels->attention_backward = FaultyAttention<kFault>::Backward;
}

// ---- Rotary positions

// The angle of pair i at position p of a table that starts at position `first`; `frequency` is the
// pair's own angle per position, `fastest` that of pair 0.
struct PairAngle {
  double first, p, frequency, fastest;
};

double SqrtThetaAngle(const PairAngle& a) {
  return (a.first + a.p) * std::sqrt(a.frequency * a.fastest);
}
double NextPositionAngle(const PairAngle& a) { return (a.first + a.p + 1) * a.frequency; }
double SameAngle(const PairAngle& a) { return a.frequency; }
double OwnAngle(const PairAngle& a) { return (a.first + a.p) * a.frequency; }

int64_t RopePosition(const RopeArgs<>& a, int64_t row) {
  return (a.offsets != nullptr ? a.offsets[row / a.T_] : a.offset) + row % a.T_;
}

// Rotation by a table of other angles, whose frequencies are read off the first two rows of the
// table at hand.
template <double (*kAngle)(const PairAngle&)>
void RopeWithAngles(const RopeArgs<>& args) {
  int64_t positions = 2;
  for (int64_t r = args.T_ - 1; r < args.B * args.T_; r += args.T_) {
    positions = std::max(positions, RopePosition(args, r) + 1);
  }
  const auto angle = [&](int64_t p, int64_t i) {
    return std::atan2(double(args.sin[p * args.half + i]), double(args.cos[p * args.half + i]));
  };
  const auto frequency = [&](int64_t i) {
    const double step = angle(1, i) - angle(0, i);
    return step < 0 ? step + 2 * M_PI : step;
  };
  const int64_t slowest = args.half - 1;
  const double first = std::round(angle(0, slowest) / frequency(slowest));
  std::vector<float> cos(positions * args.half), sin(positions * args.half);
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < args.half; ++i) {
      const double turned = kAngle({first, double(p), frequency(i), frequency(0)});
      cos[p * args.half + i] = static_cast<float>(std::cos(turned));
      sin[p * args.half + i] = static_cast<float>(std::sin(turned));
    }
  }
  RopeArgs<> changed = args;
  changed.cos = cos.data();
  changed.sin = sin.data();
  reference::Rope(changed);
}

template <double (*kAngle)(const PairAngle&)>
void PlantAngles(Kernels* kernels) {
  kernels->rope = RopeWithAngles<kAngle>;
}

// Channel c gets the angle that it has in the other layout: two partners turn by different angles.
void RopeMixedLayouts(const RopeArgs<>& a) {
  for (int64_t r = 0; r < a.B * a.T_; ++r) {
    const int64_t row = RopePosition(a, r) * a.half;
    for (int64_t head = 0; head < a.heads; ++head) {
      float* x = a.x + r * a.row + head * a.D;
      for (int64_t i = 0; i < a.half; ++i) {
        const int64_t c0 = a.interleaved ? 2 * i : i, c1 = a.interleaved ? c0 + 1 : i + a.half;
        const int64_t i0 = row + (a.interleaved ? c0 % a.half : c0 / 2);
        const int64_t i1 = row + (a.interleaved ? c1 % a.half : c1 / 2);
        const float x0 = x[c0], x1 = x[c1];
        // The transpose, for backward, exchanges the two sines.
        x[c0] = x0 * a.cos[i0] + (a.inverse ? x1 * a.sin[i1] : -x1 * a.sin[i0]);
        x[c1] = x1 * a.cos[i1] + (a.inverse ? -x0 * a.sin[i0] : x0 * a.sin[i1]);
      }
    }
  }
}

void RopeCosPlusSin(const RopeArgs<>& a) {
  for (int64_t r = 0; r < a.B * a.T_; ++r) {
    const int64_t row = RopePosition(a, r) * a.half;
    for (int64_t head = 0; head < a.heads; ++head) {
      float* x = a.x + r * a.row + head * a.D;
      for (int64_t c = 0; c < 2 * a.half; ++c) {
        const int64_t i = row + (a.interleaved ? c / 2 : c % a.half);
        x[c] *= a.cos[i] + a.sin[i];
      }
    }
  }
}

void PlantOtherPairing(Kernels* kernels) {
  kernels->rope = [](const RopeArgs<>& args) {
    RopeArgs<> changed = args;
    changed.interleaved = !args.interleaved;
    reference::Rope(changed);
  };
}

void PlantForwardTurnInBackward(Kernels* kernels) {
  kernels->rope = [](const RopeArgs<>& args) {
    RopeArgs<> changed = args;
    changed.inverse = false;
    reference::Rope(changed);
  };
}

void PlantRestart(Kernels* kernels) {
  kernels->rope = [](const RopeArgs<>& args) {
    RopeArgs<> changed = args;
    changed.offsets = nullptr;
    reference::Rope(changed);
  };
  kernels->embedding_forward = [](const EmbeddingArgs<>& args) {
    EmbeddingArgs<> changed = args;
    changed.offsets = nullptr;
    reference::EmbeddingForward(changed);
  };
}

// ---- The cache

// Written as [Hkv, position, D], read as [position, Hkv, D].
void CacheReadByPosition(const AttentionArgs<>& args) {
  AttentionArgs<> changed = args;
  if (args.lengths != nullptr) {
    changed.kv_row = args.Hkv * args.D;
    changed.kv_head = args.D;
  }
  reference::AttentionForward(changed);
}

// Layers of this pass whose attention is done: a rotation cannot tell its own layer.
thread_local int64_t layers_done = 0;

// The first layer advances the length that the others read. A rotation may then be beyond the
// table at hand.
void PlantUpperLayersAhead(Kernels* kernels) {
  kernels->embedding_forward = [](const EmbeddingArgs<>& args) {
    layers_done = 0;
    reference::EmbeddingForward(args);
  };
  kernels->attention_forward = [](const AttentionArgs<>& args) {
    ++layers_done;
    reference::AttentionForward(args);
  };
  kernels->rope = [](const RopeArgs<>& args) {
    if (args.offsets == nullptr || layers_done == 0) return reference::Rope(args);
    std::vector<int32_t> advanced(args.offsets, args.offsets + args.B);
    for (int32_t& length : advanced) length += static_cast<int32_t>(args.T_);
    RopeArgs<> changed = args;
    changed.offsets = advanced.data();
    RopeWithAngles<OwnAngle>(changed);
  };
}

// ---- Norms, MLP, loss

// One mean and one variance of all rows.
void NormOverRows(const NormArgs<>& args) {
  const int64_t n = args.rows * args.C;
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < n && !args.rms; ++i) mean += args.x[i];
  mean /= static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) variance += (args.x[i] - mean) * (args.x[i] - mean);
  variance /= static_cast<double>(n);
  if (!args.rms) std::fill_n(args.mean, args.rows, static_cast<float>(mean));
  std::fill_n(args.rstd, args.rows, static_cast<float>(1 / std::sqrt(variance + args.eps)));
  reference::NormApply(args);
}

// 1 / (sqrt(var) + eps) for 1 / sqrt(var + eps): nearly nothing on most rows.
void NormEpsOutsideSqrt(const NormArgs<>& args) {
  reference::NormForward(args);
  for (int64_t r = 0; r < args.rows; ++r) {
    const double variance = 1.0 / (double(args.rstd[r]) * args.rstd[r]) - args.eps;
    args.rstd[r] = static_cast<float>(1.0 / (std::sqrt(variance) + args.eps));
  }
  reference::NormApply(args);
}

// 4e-4 at most in one activation.
void GeluByErf(const MatmulArgs<>& args) {
  SimdKernels().matmul(args);
  if (args.epilogue != Epilogue::kGelu) return;
  for (int64_t i = 0; i < args.M; ++i) {
    for (int64_t j = 0; j < args.N; ++j) {
      const double x = args.c[i * args.ldc + j];
      args.aux[i * args.ldc + j] = static_cast<float>(0.5 * x * std::erfc(-x / std::sqrt(2.0)));
    }
  }
}

void LabelsShiftedTwice(const CrossEntropyArgs<>& args) {
  std::vector<int32_t> shifted(args.targets + 1, args.targets + args.rows);
  shifted.push_back(args.targets[args.rows - 1]);
  CrossEntropyArgs<> changed = args;
  changed.targets = shifted.data();
  reference::CrossEntropy(changed);
}

// ---- Dropout

// As a functional call that is given its probability in eval too.
AttentionArgs<> WithDropout(AttentionArgs<> args) {
  if (args.dropout.p == 0) args.dropout.p = 0.1;
  return args;
}

AttentionArgs<> WithoutDropout(AttentionArgs<> args) {
  args.dropout.p = 0;
  return args;
}

template <AttentionArgs<> (*kChange)(AttentionArgs<>)>
void PlantAttentionDropout(Kernels* kernels) {
  kernels->attention_forward = [](const AttentionArgs<>& args) {
    reference::AttentionForward(kChange(args));
  };
  kernels->attention_backward = [](const AttentionArgs<>& args) {
    reference::AttentionBackward(kChange(args));
  };
}

void PlantDropoutUnused(Kernels* kernels) {
  PlantAttentionDropout<WithoutDropout>(kernels);
  kernels->dropout = [](float*, int64_t, uint64_t, const DropoutArgs&) {};
}

void PlantDropoutUnscaled(Kernels* kernels) {
  kernels->dropout = [](float* x, int64_t n, uint64_t first, const DropoutArgs& args) {
    reference::Dropout(x, n, first, args);
    for (int64_t i = 0; i < n; ++i) x[i] *= static_cast<float>(1 - args.p);
  };
}

constexpr PlantedFault kFaults[] = {
    {"mask_missing", "every query sees every key", PlantAttention<AttentionFault::kMaskMissing>},
    {"mask_shifted_by_one", "one future key is visible",
     PlantAttention<AttentionFault::kMaskOneTooFar>},
    {"mask_01_added", "a triangle of ones is added to the scores",
     PlantAttention<AttentionFault::kMaskAdded>},
    {"mask_fill_too_weak", "hidden scores are lowered by 50, not removed",
     PlantAttention<AttentionFault::kMaskWeak>},
    {"causal_align_top_left", "behind a cache, query i sees keys 0 to i",
     PlantAttention<AttentionFault::kMaskTopLeft>},
    {"mask_dropped_on_a_path", "no mask when a prompt is read into a cache",
     PlantAttention<AttentionFault::kMaskLostInPrefill>},
    {"scale_missing", "scores are not divided by the root of the head width",
     PlantAttention<AttentionFault::kScaleMissing>},
    {"softmax_axis_query", "softmax over queries: columns sum to 1",
     PlantAttention<AttentionFault::kColumnSoftmax>},
    {"gqa_tiled", "query head h reads key/value head h mod n_kv_head",
     PlantAttention<AttentionFault::kTiledHeads>},
    {"gqa_summed", "outputs of a group are summed, the other heads' places stay empty",
     PlantAttention<AttentionFault::kSummedHeads>},
    {"heads_merged_untransposed", "[B, H, T, D] is reshaped to [B, T, H D] as it lies",
     PlantAttention<AttentionFault::kMergedUntransposed>},
    {"rope_theta", "angles of the square root of rope_theta", PlantAngles<SqrtThetaAngle>},
    {"rope_mixed_layouts", "angles of one pairing, partners of the other",
     [](Kernels* kernels) { kernels->rope = RopeMixedLayouts; }},
    {"rope_cos_plus_sin", "x (cos + sin) in place of a rotation",
     [](Kernels* kernels) { kernels->rope = RopeCosPlusSin; }},
    {"rope_same_angle", "every position turns as position 1 does", PlantAngles<SameAngle>},
    {"rope_origin", "positions count from one more than the settings say",
     PlantAngles<NextPositionAngle>},
    {"rope_pairing", "the other pairing of channels", PlantOtherPairing},
    {"rope_gradient_sign", "backward turns forward", PlantForwardTurnInBackward},
    {"position_restart", "behind a cache, positions count from 0 again", PlantRestart},
    {"position_upper_layers", "behind a cache, layers above the first are one chunk too far",
     PlantUpperLayersAhead},
    {"cache_head_stride", "written as [head, position, D], read as [position, head, D]",
     [](Kernels* kernels) { kernels->attention_forward = CacheReadByPosition; }},
    {"norm_over_sequence", "one mean and variance for all positions",
     [](Kernels* kernels) { kernels->norm_forward = NormOverRows; }},
    {"norm_eps_outside_sqrt", "1 / (sqrt(var) + eps)",
     [](Kernels* kernels) { kernels->norm_forward = NormEpsOutsideSqrt; }},
    {"gelu_form", "GELU by erf where the tanh form is meant",
     [](Kernels* kernels) { kernels->matmul = GeluByErf; }},
    {"labels_shifted_twice", "the loss asks for the token after the next",
     [](Kernels* kernels) { kernels->cross_entropy = LabelsShiftedTwice; }},
    {"dropout_live_in_eval", "attention drops a tenth of its weights in eval",
     PlantAttentionDropout<WithDropout>},
    {"dropout_unused", "no dropout in training", PlantDropoutUnused},
    {"dropout_scaling_missing", "what dropout keeps is not divided by 1 - p", PlantDropoutUnscaled},
};

}  // namespace

std::span<const PlantedFault> PlantedFaults() { return kFaults; }

Result<Kernels> PlantedKernels(const std::string& name, const Kernels& base) {
  std::vector<std::string> known;
  std::string all;
  for (const PlantedFault& fault : kFaults) {
    if (fault.name == name) {
      Kernels kernels = base;
      fault.plant(&kernels);
      return kernels;
    }
    known.emplace_back(fault.name);
    all += (all.empty() ? "" : ", ") + known.back();
  }
  const std::string nearest = NearestName(name, known);
  return BadRequest("--plant", "'" + name + "'", "one of " + all,
                    nearest.empty() ? "" : "did you mean " + nearest + "?");
}

}  // namespace heed
