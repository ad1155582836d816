#include "verify/diagnose/live_probe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace heed {
namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;
// Seeds of one probe's tensors: x, four weights, four biases, two gains and biases of norms.
constexpr uint64_t kStreams = 16;

std::vector<double> Uniform(uint64_t seed, int64_t count, double gain) {
  std::vector<double> values(count);
  uint64_t state = seed;
  for (double& value : values) {
    uint64_t z = state += kGamma;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    value = gain * (static_cast<double>(z >> 40) * 0x1p-23 - 1);
  }
  return values;
}

double PowerOfTwo(double value) { return std::exp2(std::round(std::log2(value))); }

// Uniform numbers have a variance of 1/3: queries and keys get one of about 2, y of about 1.
double InGain(int64_t C) { return PowerOfTwo(std::sqrt(18.0 / static_cast<double>(C))); }
double OutGain(int64_t width) { return PowerOfTwo(std::sqrt(6.0 / static_cast<double>(width))); }
constexpr double kBiasGain = 0.5, kNormGain = 0.5;

struct Sizes {
  int64_t q, kv, C;  // rows of the projections, width of the model
  explicit Sizes(const ProbeShape& shape)
      : q(shape.settings.n_head * shape.settings.head_dim),
        kv(shape.settings.n_kv_head * shape.settings.head_dim),
        C(shape.n_embd) {}
};

// Rows of the joined weight in the order in which a fused one is stored.
std::vector<int64_t> FusedRows(const ProbeShape& shape) {
  const AttentionSettings& s = shape.settings;
  const Sizes sizes(shape);
  std::vector<int64_t> rows(sizes.q + 2 * sizes.kv);
  std::iota(rows.begin(), rows.end(), 0);
  if (s.qkv_layout == QkvLayout::kBlocks) return rows;
  rows.clear();
  const int64_t D = s.head_dim, group = s.n_head / s.n_kv_head;
  for (int64_t kv = 0; kv < s.n_kv_head; ++kv) {
    for (int64_t i = 0; i < group * D; ++i) rows.push_back(kv * group * D + i);
    for (int64_t i = 0; i < D; ++i) rows.push_back(sizes.q + kv * D + i);
    for (int64_t i = 0; i < D; ++i) rows.push_back(sizes.q + sizes.kv + kv * D + i);
  }
  return rows;
}

}  // namespace

Result<ProbeShape> ChooseShape(AttentionSettings s, int64_t n_embd, int64_t B, int64_t T) {
  const auto free = [&](int64_t size) {
    return size != B && size != T && size != s.n_head && size != s.n_kv_head;
  };
  if (s.n_head == 0 && s.head_dim > 0 && n_embd > 0 && s.n_kv_head == 0) {
    s.n_head = std::max<int64_t>(n_embd / s.head_dim, 1);
  }
  if (s.n_head == 0 && n_embd > 0 && s.head_dim == 0) {
    for (const int64_t heads : {3, 4, 6, 5, 8, 2, 7, 1}) {
      const int64_t multiple = std::max<int64_t>(s.n_kv_head, 1);
      if (s.n_head == 0 && heads % multiple == 0 && n_embd % (2 * heads) == 0) s.n_head = heads;
    }
  }
  if (s.n_head == 0) s.n_head = s.n_kv_head == 0 ? 3 : 3 * s.n_kv_head;
  if (s.n_kv_head == 0) s.n_kv_head = s.n_head;
  if (s.head_dim == 0 && n_embd > 0) s.head_dim = n_embd / s.n_head;
  if (s.head_dim == 0) {
    for (const int64_t width : {8, 10, 6, 12}) {
      if (s.head_dim == 0 && free(width)) s.head_dim = width;
    }
  }
  if (n_embd == 0) n_embd = s.n_head * s.head_dim;
  if (s.n_head % s.n_kv_head != 0) {
    return BadRequest("--n-kv-head", fmt::format("{}", s.n_kv_head),
                      fmt::format("a divisor of n_head {}", s.n_head));
  }
  if (s.head_dim == 0) {
    return BadRequest("--n-embd", fmt::format("{}", n_embd),
                      fmt::format("at least n_head {}", s.n_head));
  }
  if (s.position == Position::kRope && s.head_dim % 2 != 0) {
    return BadRequest("--head-dim", fmt::format("{}", s.head_dim), "an even number with rope");
  }
  if (s.rotary_dim == 0) s.rotary_dim = s.head_dim / 2 * 2;
  if (s.rotary_dim > s.head_dim) {
    return BadRequest("--rotary-dim", fmt::format("{}", s.rotary_dim),
                      fmt::format("at most head_dim {}", s.head_dim));
  }
  return ProbeShape{.settings = s, .n_embd = n_embd};
}

AttentionCase MakeCase(const Probe& probe) {
  const ProbeShape& shape = probe.shape;
  const Sizes sizes(shape);
  const uint64_t first = probe.seed * kStreams;
  AttentionCase a;
  a.settings = shape.settings;
  a.B = probe.B;
  a.T = probe.T;
  a.x = Uniform(first, a.B * a.T * sizes.C, probe.gain);
  const int64_t rows[4] = {sizes.q, sizes.kv, sizes.kv, sizes.C};
  const char* const names[4] = {"q_proj", "k_proj", "v_proj", "o_proj"};
  a.qkv = {.out = sizes.q + 2 * sizes.kv, .in = sizes.C};
  a.proj = {.out = sizes.C, .in = sizes.q};
  int64_t row = 0;
  for (uint64_t p = 0; p < 4; ++p) {
    SavedLinear& linear = p < 3 ? a.qkv : a.proj;
    const double gain = p < 3 ? InGain(sizes.C) : OutGain(sizes.q);
    const std::vector<double> weight = Uniform(first + 1 + p, rows[p] * linear.in, gain);
    const std::vector<double> bias = Uniform(first + 5 + p, rows[p], shape.bias ? kBiasGain : 0);
    linear.weight.insert(linear.weight.end(), weight.begin(), weight.end());
    linear.bias.insert(linear.bias.end(), bias.begin(), bias.end());
    const std::string name = shape.fused && p == 3 ? "c_proj" : names[p];
    WeightPart part{name + ".weight", shape.bias ? name + ".bias" : "", false,
                    std::vector<int64_t>(rows[p])};
    std::iota(part.rows.begin(), part.rows.end(), p == 3 ? 0 : row);
    if (p < 3) row += rows[p];
    if (!shape.fused || p == 3) linear.parts.push_back(std::move(part));
  }
  if (shape.fused) {
    a.qkv.parts = {{"c_attn.weight", shape.bias ? "c_attn.bias" : "", false, FusedRows(shape)}};
  }
  return a;
}

AttentionContext MakeContext(const Probe& probe) {
  AttentionContext context = probe.shape.told;
  const AttentionSettings& s = probe.shape.settings;
  if (probe.mode == "alibi") context.alibi = true;
  if (probe.mode == "qk_norm" || probe.mode == "qk_layernorm") {
    context.qk_norm = NormPlace::kBeforeRotation;
    context.qk_layernorm = probe.mode == "qk_layernorm";
  }
  if (probe.mode == "padded") {
    for (int64_t at = 0; at < probe.B * probe.T; ++at) {
      const int64_t pads = std::min(probe.B - at / probe.T, probe.T - 1);
      context.attention_mask.push_back(at % probe.T >= pads);
    }
  }
  if (!context.HasNorm()) return context;
  context.qk_layernorm = context.qk_layernorm.value_or(false);
  context.norm_eps = context.norm_eps.value_or(1e-6);
  // One head's numbers, the same for all.
  const auto heads = [&](uint64_t stream, int64_t count, double middle) {
    std::vector<double> values;
    for (int64_t h = 0; h < count; ++h) {
      for (const double value : Uniform(probe.seed * kStreams + stream, s.head_dim, kNormGain)) {
        values.push_back(middle + value);
      }
    }
    return values;
  };
  context.q_norm = {.name = "q_norm", .values = heads(9, s.n_head, 1)};
  context.k_norm = {.name = "k_norm", .values = heads(10, s.n_kv_head, 1)};
  if (*context.qk_layernorm) {
    context.q_norm.bias = heads(11, s.n_head, 0);
    context.k_norm.bias = heads(12, s.n_kv_head, 0);
  }
  return context;
}

namespace {

// Lines of numpy that make what MakeContext adds.
std::string ContextCode(const Probe& probe) {
  const AttentionContext context = MakeContext(probe);
  const uint64_t first = probe.seed * kStreams;
  const int64_t D = probe.shape.settings.head_dim;
  std::string code;
  if (context.alibi) code += "# scores have ALiBi's slopes\n";
  if (context.HasNorm()) {
    const bool layer = *context.qk_layernorm;
    const bool before = context.qk_norm == NormPlace::kBeforeRotation;
    code += fmt::format("# {} norm of q and k {} the rotation, eps {}\n", layer ? "layer" : "RMS",
                        before ? "before" : "behind", *context.norm_eps);
    for (const uint64_t i : {0, 1}) {
      code +=
          fmt::format("gain_{} = 1 + {} * numbers({}, {})\n", "qk"[i], kNormGain, first + 9 + i, D);
    }
    for (uint64_t i = 0; i < 2 && layer; ++i) {
      code +=
          fmt::format("shift_{} = {} * numbers({}, {})\n", "qk"[i], kNormGain, first + 11 + i, D);
    }
  }
  if (context.Padded()) {
    std::vector<std::string> rows;
    for (int64_t b = 0; b < probe.B; ++b) {
      const auto row = context.attention_mask.begin() + b * probe.T;
      rows.push_back(
          fmt::format("[{}]", fmt::join(std::vector<int64_t>(row, row + probe.T), ", ")));
    }
    code += fmt::format("attention_mask = np.array([{}])\n", fmt::join(rows, ", "));
  }
  return code;
}

}  // namespace

std::string ProbeCode(const Probe& probe, const std::vector<double>& y, int64_t b, int64_t t) {
  const Sizes sizes(probe.shape);
  const uint64_t first = probe.seed * kStreams;
  const auto times = [](double gain) {
    return gain == 1 ? std::string() : fmt::format("{:g} * ", gain);
  };
  std::string code = fmt::format(
      "import numpy as np\n\n\n"
      "def numbers(seed, *shape):  # uniform in [-1, 1), SplitMix64\n"
      "    i = np.arange(1, np.prod(shape) + 1, dtype=np.uint64)\n"
      "    z = np.uint64(seed) + i * np.uint64(0x{:X})\n"
      "    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)\n"
      "    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)\n"
      "    z = (z ^ (z >> np.uint64(31))) >> np.uint64(40)\n"
      "    return (z / 2**23 - 1).astype(np.float32).reshape(shape)\n\n\n"
      "# {} query heads, {} key/value heads, {} channels a head\n"
      "x = {}numbers({}, {}, {}, {})\n",
      kGamma, probe.shape.settings.n_head, probe.shape.settings.n_kv_head,
      probe.shape.settings.head_dim, times(probe.gain), first, probe.B, probe.T, sizes.C);
  const int64_t rows[4] = {sizes.q, sizes.kv, sizes.kv, sizes.C};
  for (int p = 0; p < 4; ++p) {
    const int64_t in = p < 3 ? sizes.C : sizes.q;
    const double gain = p < 3 ? InGain(sizes.C) : OutGain(sizes.q);
    code += fmt::format("w_{} = {}numbers({}, {}, {})  # [out, in]\n", "qkvo"[p], times(gain),
                        first + 1 + p, rows[p], in);
  }
  for (int p = 0; p < 4 && probe.shape.bias; ++p) {
    code += fmt::format("b_{} = {}numbers({}, {})\n", "qkvo"[p], times(kBiasGain), first + 5 + p,
                        rows[p]);
  }
  if (!probe.shape.bias) code += "# biases, where the module has any, are 0\n";
  code += ContextCode(probe);
  const int64_t width = std::min<int64_t>(sizes.C, 4);
  std::vector<std::string> expected;
  for (int64_t c = 0; c < width; ++c) {
    expected.push_back(fmt::format("{:.6g}", y[(b * probe.T + t) * sizes.C + c]));
  }
  std::string call = fmt::format("y = ...  # your module's answer in {} mode", probe.mode);
  if (!probe.chunks.empty()) {
    call = fmt::format("y = ...  # your module's answers to chunks of {} positions, joined",
                       fmt::join(probe.chunks, ", "));
  }
  return code + call +
         fmt::format("\nnp.testing.assert_allclose(y[{}, {}, :{}], [{}], rtol=1e-3, atol=1e-4)\n",
                     b, t, width, fmt::join(expected, ", "));
}

}  // namespace heed
