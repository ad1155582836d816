// The model's attention is asked for its weights by the values that it averages: with all values 1
// it answers the sums of its rows, with unit vectors the weights themselves.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/reference/attention.h"
#include "verify/checks.h"

namespace heed {
namespace {

// The weights [B, H, T, S] that the model's kernels give.
std::vector<double> KernelPattern(const Kernels& kernels, LayerAttention layer) {
  AttentionArgs<>& a = layer.args;
  a.q = layer.qkv.data();
  a.k = layer.k();
  a.v = layer.v();
  a.z = layer.z.data();
  std::vector<double> pattern(a.B * a.H * a.T_ * a.S);
  for (int64_t first = 0; first < a.S; first += a.D) {
    layer.SetValues([&](int64_t s, int64_t, int64_t d) { return s == first + d ? 1 : 0; });
    kernels.attention_forward(a);
    for (int64_t row = 0; row < a.B * a.T_ * a.H; ++row) {
      const int64_t b = row / (a.T_ * a.H), t = row / a.H % a.T_, h = row % a.H;
      for (int64_t s = first; s < std::min(first + a.D, a.S); ++s) {
        pattern[((b * a.H + h) * a.T_ + t) * a.S + s] = layer.z[row * a.D + s - first];
      }
    }
  }
  return pattern;
}

// The same by definition, in double, with any scale.
std::vector<double> DefinedPattern(const LayerAttention& layer, double scale) {
  const AttentionArgs<>& from = layer.args;
  const std::vector<double> qkv(layer.qkv.begin(), layer.qkv.end());
  std::vector<double> z(layer.z.size());
  AttentionArgs<double> a{from.B, from.T_, from.S, from.H, from.Hkv, from.D};
  a.scale = scale;
  a.window = from.window;
  a.q = qkv.data();
  a.k = a.q + a.H * a.D;
  a.v = a.k + a.Hkv * a.D;
  a.q_row = a.kv_row = from.q_row;
  a.q_batch = a.kv_batch = from.q_batch;
  a.kv_head = a.D;
  a.z = z.data();
  std::vector<double> scores(a.B * a.H * a.T_ * a.S), pattern(scores.size());
  reference::AttentionTrace(a, scores.data(), pattern.data());
  return pattern;
}

struct Difference {
  double value = 0;
  size_t index = 0;
};

Difference Largest(const std::vector<double>& a, const std::vector<double>& b) {
  Difference largest;
  for (size_t i = 0; i < a.size(); ++i) {
    const double worse = Worse(largest.value, std::abs(a[i] - b[i]));
    if (worse > largest.value) largest = {worse, i};
  }
  return largest;
}

// The scale out of those that people write which explains the weights; "" when none does.
std::string FittingScale(const LayerAttention& layer, const std::vector<double>& pattern,
                         int64_t width, double bound) {
  const auto D = static_cast<double>(layer.args.D), C = static_cast<double>(width);
  const std::pair<const char*, double> scales[] = {{"1: no scale at all", 1},
                                                   {"1 / D", 1 / D},
                                                   {"1 / sqrt(n_embd)", 1 / std::sqrt(C)},
                                                   {"0", 0}};
  for (const auto& [name, scale] : scales) {
    if (Largest(pattern, DefinedPattern(layer, scale)).value <= bound) {
      return fmt::format("; the weights are those of scale {}", name);
    }
  }
  return "";
}

}  // namespace

Result<Finding> CheckRowSums(Probe& probe) {
  Finding finding{0, 1e-5};
  HEED_ASSIGN(std::vector<LayerAttention> layers, probe.Attentions());
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].SetValues([](int64_t, int64_t, int64_t) { return 1; });
    probe.model.kernels().attention_forward(layers[i].args);
    for (const float sum : layers[i].z) {
      const double worse = Worse(finding.value, std::abs(double(sum) - 1));
      if (worse == finding.value) continue;
      finding.value = worse;
      if (worse > finding.bound) finding.note = fmt::format("layer {} has a row of sum {}", i, sum);
    }
  }
  return finding;
}

Result<Finding> CheckPattern(Probe& probe) {
  Finding finding{0, 1e-4};
  HEED_ASSIGN(const std::vector<LayerAttention> layers, probe.Attentions());
  for (size_t i = 0; i < layers.size(); ++i) {
    const AttentionArgs<>& a = layers[i].args;
    const std::vector<double> got = KernelPattern(probe.model.kernels(), layers[i]);
    const std::vector<double> want = DefinedPattern(layers[i], a.scale);
    const Difference largest = Largest(got, want);
    if (Worse(finding.value, largest.value) == finding.value) continue;
    finding.value = largest.value;
    if (finding.value <= finding.bound) continue;
    const auto at = static_cast<int64_t>(largest.index);
    finding.note =
        fmt::format("layer {} head {} query {} key {}: {:.6f}, by definition {:.6f}", i,
                    at / (a.S * a.T_) % a.H, at / a.S % a.T_, at % a.S, got[at], want[at]) +
        FittingScale(layers[i], got, probe.config().n_embd, finding.bound);
  }
  return finding;
}

Result<Finding> CheckHeadMap(Probe& probe) {
  const ModelConfig& c = probe.config();
  if (c.n_kv_head == c.n_head) {
    return NotApplicable("every query head has keys and values of its own");
  }
  Finding finding{0, 1e-4};
  if (c.n_kv_head == 1) finding.note = "with one key/value head no order can be wrong";
  HEED_ASSIGN(std::vector<LayerAttention> layers, probe.Attentions());
  layers[0].SetValues([](int64_t, int64_t h, int64_t) { return h; });
  probe.model.kernels().attention_forward(layers[0].args);
  const int64_t D = c.head_dim;
  for (size_t i = 0; i < layers[0].z.size(); ++i) {
    const int64_t h = static_cast<int64_t>(i) / D % c.n_head, want = h / (c.n_head / c.n_kv_head);
    const double error = std::abs(double(layers[0].z[i]) - double(want));
    if (error > finding.bound && finding.value <= finding.bound) {
      finding.note = fmt::format("query head {} answers {:.4g}, the value of key/value head {}", h,
                                 layers[0].z[i], want);
    }
    finding.value = Worse(finding.value, error);
  }
  return finding;
}

namespace {

constexpr int64_t kMostPositions = 4096;

Finding NoRope() { return NotApplicable("this model does not rotate"); }
Finding StretchedRope() { return NotApplicable("this model's rotary angles are stretched"); }

bool IsStretched(const ModelConfig& c) { return c.rope_scaling.rope_type != RopeStretch::kNone; }

// x [positions, D] of one head, turned as the model turns queries and keys.
void Turn(const Probe& probe, int64_t positions, std::vector<float>* x) {
  const ModelConfig& c = probe.config();
  const RopeTable& table = *probe.model.blocks()[0].attention.rope;
  RopeArgs<> args{1, positions, 1, c.head_dim, table.half};
  args.interleaved = c.rope_pairing == RopePairing::kInterleaved;
  args.x = x->data();
  args.row = c.head_dim;
  args.cos = table.cos.data();
  args.sin = table.sin.data();
  probe.model.kernels().rope(args);
}

int64_t RopePositions(const Probe& probe) {
  return std::min(probe.config().block_size, kMostPositions);
}

// [positions, D], every row the same random vector.
std::vector<float> RepeatedVector(const Probe& probe, uint32_t stream) {
  const int64_t D = probe.config().head_dim;
  std::vector<float> x(RopePositions(probe) * D);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(RandomNormal({probe.seed, stream, kTextStream}, i % D));
  }
  return x;
}

// The largest error of pairs [1, 0] that were turned by (p + first) theta^(-2i / rotary_dim).
double AngleError(const ModelConfig& c, const std::vector<float>& turned, int64_t first) {
  double worst = 0;
  const bool interleaved = c.rope_pairing == RopePairing::kInterleaved;
  const int64_t half = c.rotary_dim / 2, D = c.head_dim;
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(c.rope_theta, -2.0 * double(i) / double(c.rotary_dim));
    const int64_t c0 = interleaved ? 2 * i : i, c1 = interleaved ? 2 * i + 1 : i + half;
    for (int64_t p = 0; p < static_cast<int64_t>(turned.size()) / D; ++p) {
      const double angle = double(p + first) * frequency;
      worst = Worse(worst, std::abs(turned[p * D + c0] - std::cos(angle)));
      worst = Worse(worst, std::abs(turned[p * D + c1] - std::sin(angle)));
    }
  }
  return worst;
}

}  // namespace

Result<Finding> CheckRopeAngles(Probe& probe) {
  const ModelConfig& c = probe.config();
  if (c.position != Position::kRope) return NoRope();
  if (IsStretched(c)) return StretchedRope();
  const bool interleaved = c.rope_pairing == RopePairing::kInterleaved;
  const int64_t positions = RopePositions(probe), D = c.head_dim;
  std::vector<float> x(positions * D);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto channel = static_cast<int64_t>(i) % D;
    x[i] = channel < c.rotary_dim && (interleaved ? channel % 2 == 0 : channel < c.rotary_dim / 2);
  }
  Turn(probe, positions, &x);
  Finding finding{AngleError(c, x, c.rope_first_position), 1e-6};
  finding.note = fmt::format("{} positions, {} pairs", positions, c.rotary_dim / 2);
  if (finding.value <= finding.bound) return finding;
  // The scores depend on differences of positions alone, so another origin is a convention.
  for (const int64_t first : {c.rope_first_position + 1, c.rope_first_position - 1}) {
    const double shifted = AngleError(c, x, first);
    if (shifted > finding.bound) continue;
    finding.value = shifted;
    finding.note = fmt::format(
        "exact when positions count from {}, where the settings say {}: the same scores", first,
        c.rope_first_position);
  }
  return finding;
}

Result<Finding> CheckRopeNorm(Probe& probe) {
  if (probe.config().position != Position::kRope) return NoRope();
  if (IsStretched(probe.config())) return StretchedRope();
  const int64_t positions = RopePositions(probe), D = probe.config().head_dim;
  std::vector<float> x = RepeatedVector(probe, 11);
  const auto squares = [&](int64_t p) {
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) sum += double(x[p * D + d]) * x[p * D + d];
    return sum;
  };
  const double before = squares(0);
  Turn(probe, positions, &x);
  Finding finding{0, 1e-5};
  for (int64_t p = 0; p < positions; ++p) {
    finding.value = Worse(finding.value, std::abs(squares(p) / before - 1));
  }
  return finding;
}

Result<Finding> CheckRopeRelative(Probe& probe) {
  if (probe.config().position != Position::kRope) return NoRope();
  const int64_t positions = RopePositions(probe), D = probe.config().head_dim;
  if (positions < 3) return NotApplicable("block_size leaves no room to shift");
  std::vector<float> q = RepeatedVector(probe, 12), k = RepeatedVector(probe, 13);
  double qq = 0, kk = 0;
  for (int64_t d = 0; d < D; ++d) {
    qq += double(q[d]) * q[d];
    kk += double(k[d]) * k[d];
  }
  Turn(probe, positions, &q);
  Turn(probe, positions, &k);
  const int64_t distance = std::min<int64_t>(3, positions - 2);
  const auto score = [&](int64_t p) {
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) sum += double(q[(p + distance) * D + d]) * k[p * D + d];
    return sum / std::sqrt(qq * kk);
  };
  Finding finding{0, 1e-5};
  finding.note = fmt::format("distance {}, shifted by 1 to {}", distance, positions - distance - 1);
  for (int64_t p = 1; p + distance < positions; ++p) {
    finding.value = Worse(finding.value, std::abs(score(p) - score(0)));
  }
  return finding;
}

Result<Finding> CheckRopeQuarterTurns(Probe& probe) {
  if (probe.config().position != Position::kRope) return NoRope();
  constexpr int64_t kPositions = 8;
  std::vector<float> cos, sin, x;
  for (int64_t p = 0; p < kPositions; ++p) {
    cos.push_back(static_cast<float>(std::cos(double(p) * M_PI / 2)));
    sin.push_back(static_cast<float>(std::sin(double(p) * M_PI / 2)));
    x.insert(x.end(), {1, 0});
  }
  RopeArgs<> args{1, kPositions, 1, 2, 1};
  args.interleaved = probe.config().rope_pairing == RopePairing::kInterleaved;
  args.x = x.data();
  args.row = 2;
  args.cos = cos.data();
  args.sin = sin.data();
  probe.model.kernels().rope(args);
  const auto score = [&](int64_t p, int64_t q) {
    return double(x[2 * p]) * x[2 * q] + double(x[2 * p + 1]) * x[2 * q + 1];
  };
  Finding finding{0, 1e-6};
  const double scores[] = {score(0, 0), score(0, 1), score(0, 2), score(5, 7)};
  constexpr double kWant[] = {1, 0, -1, -1};
  for (int i = 0; i < 4; ++i) {
    finding.value = Worse(finding.value, std::abs(scores[i] - kWant[i]));
  }
  finding.note = fmt::format("scores {:.2g}, {:.2g}, {:.2g}; (5, 7) {:.2g}", scores[0], scores[1],
                             scores[2], scores[3]);
  return finding;
}

}  // namespace heed
