#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "verify/checks.h"

namespace heed {
namespace {

// Of the same numbers computed in other shapes.
constexpr double kSameNumbers = 1e-5;

Finding NoPast() { return NotApplicable("block_size 1 has no earlier positions"); }

// The probe's tokens with every sequence's token t replaced.
std::vector<int32_t> Changed(const Probe& probe, int64_t t) {
  std::vector<int32_t> changed = probe.tokens;
  for (int64_t b = 0; b < probe.B; ++b) {
    int32_t& token = changed[b * probe.T + t];
    token = static_cast<int32_t>((token + 1) % probe.config().vocab_size);
  }
  return changed;
}

std::vector<int64_t> ChangedPositions(const Probe& probe) { return {1, probe.T / 2, probe.T - 1}; }

// Counts the positions before a changed token whose logits changed in any bit.
Result<Finding> CausalityFinding(Probe& probe) {
  Finding finding;
  const int64_t V = probe.config().vocab_size;
  HEED_ASSIGN(const std::vector<float> base, probe.Logits());
  for (const int64_t t : ChangedPositions(probe)) {
    HEED_ASSIGN(const std::vector<float> logits, probe.Logits(Changed(probe, t), probe.B));
    for (int64_t b = 0; b < probe.B; ++b) {
      const auto row = [&](const std::vector<float>& of, int64_t first, int64_t n) {
        return std::span(of).subspan((b * probe.T + first) * V, n * V);
      };
      for (int64_t s = 0; s < t; ++s) {
        if (SameBits(row(base, s, 1), row(logits, s, 1))) continue;
        if (finding.note.empty()) {
          finding.note = fmt::format("token {} changed, position {} moved", t, s);
        }
        ++finding.value;
      }
      // Where nothing ever moves, nothing was tested.
      if (!SameBits(row(base, t, probe.T - t), row(logits, t, probe.T - t))) continue;
      ++finding.value;
      finding.note = fmt::format("token {} changed and no position moved, not even its own", t);
    }
  }
  return finding;
}

// The largest error of the logits that a cache gives, as a share of the largest logit.
Result<Finding> CacheFinding(Probe& probe, const std::vector<int64_t>& pieces) {
  const int64_t V = probe.config().vocab_size;
  HEED_ASSIGN(const std::vector<float> whole, probe.Logits());
  HEED_ASSIGN(const std::vector<float> cached, probe.CachedLogits(pieces));
  Finding finding{RelativeError(cached, whole), kSameNumbers};
  if (SameBits(cached, whole)) {
    finding.note = "equal in every bit";
    return finding;
  }
  for (int64_t t = 0; t < probe.T; ++t) {
    const auto first = std::span(whole).subspan(t * V, V);
    if (RelativeError(std::span(cached).subspan(t * V, V), first) <= kSameNumbers) continue;
    finding.note = fmt::format("first differs at position {}", t);
    break;
  }
  return finding;
}

}  // namespace

Result<Finding> CheckShapes(Probe& probe) {
  const ModelConfig& c = probe.config();
  const int64_t B = probe.B, T = probe.T, D = c.head_dim;
  Finding finding;
  finding.note = fmt::format("q [{}, {}, {}, {}], k and v [{}, {}, {}, {}], logits [{}, {}, {}]", B,
                             c.n_head, T, D, B, c.n_kv_head, T, D, B, T, c.vocab_size);
  HEED_ASSIGN(const Taps taps, Taps::Run(probe.model, probe.model.NewPass(B, T), probe.tokens));
  const auto expect = [&](int64_t got, int64_t want, const std::string& what) {
    if (got == want) return;
    ++finding.value;
    finding.note = fmt::format("{} holds {} numbers, expected {}", what, got, want);
  };
  expect(probe.model.parameters().elements(), ParameterCount(c), "the model");
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const std::string h = fmt::format("h.{}.", i);
    for (const auto& [name, width] :
         {std::pair<const char*, int64_t>{"attn.qkv", (c.n_head + 2 * c.n_kv_head) * D},
          {"attn.merged", c.n_head * D},
          {"middle", c.n_embd},
          {"output", c.n_embd}}) {
      expect(static_cast<int64_t>(taps.Find(h + name).size()), B * T * width, h + name);
    }
  }
  HEED_ASSIGN(const std::vector<float> logits, probe.Logits());
  const int64_t wrong = std::count_if(logits.begin(), logits.end(),
                                      [](float logit) { return !std::isfinite(logit); });
  if (wrong > 0) finding.note = fmt::format("{} of {} logits are not finite", wrong, logits.size());
  finding.value += static_cast<double>(wrong);
  return finding;
}

Result<Finding> CheckEvalRepeats(Probe& probe) {
  Finding finding;
  HEED_ASSIGN(const std::vector<float> first, probe.Logits());
  // As two calls of a program with a generator of random numbers that has moved on.
  Pass later = probe.model.NewPass(probe.B, probe.T);
  later.step = 1;
  HEED_ASSIGN(const std::vector<float> second, probe.Logits(later, probe.tokens));
  finding.value = RelativeError(second, first);
  return finding;
}

Result<Finding> CheckCausality(Probe& probe) {
  if (probe.T < 2) return NoPast();
  return CausalityFinding(probe);
}

Result<Finding> CheckCausalityAtLargeScores(Probe& probe) {
  if (probe.T < 2) return NoPast();
  constexpr float kFactor = 100;
  std::vector<std::pair<Parameter*, std::vector<float>>> kept;
  for (const Block& block : probe.model.blocks()) {
    // Queries are the first outputs of a fused projection, or the first projection.
    const Linear& linear = block.attention.qkv[0];
    const int64_t queries = block.attention.q_width();
    for (Parameter* p : {linear.weight, linear.bias}) {
      if (p == nullptr) continue;
      kept.emplace_back(p, std::vector<float>(p->data, p->data + p->elements));
      for (int64_t i = 0; i < p->elements; ++i) {
        const int64_t output = linear.out_in && p == linear.weight ? i / linear.in : i % linear.out;
        if (output < queries) p->data[i] *= kFactor;
      }
    }
  }
  Result<Finding> finding = CausalityFinding(probe);
  for (auto& [p, values] : kept) std::copy(values.begin(), values.end(), p->data);
  return finding;
}

Result<Finding> CheckCausalityOfLayers(Probe& probe) {
  if (probe.T < 2) return NoPast();
  const int64_t t = probe.T - 1;
  const Pass pass = probe.model.NewPass(probe.B, probe.T);
  HEED_ASSIGN(const Taps base, Taps::Run(probe.model, pass, probe.tokens));
  HEED_ASSIGN(const Taps changed, Taps::Run(probe.model, pass, Changed(probe, t)));
  const std::vector<Taps::Tensor> before = base.Saved(), after = changed.Saved();
  Finding finding;
  for (size_t i = 0; i < before.size(); ++i) {
    const auto row = static_cast<int64_t>(before[i].values.size()) / (probe.B * probe.T);
    bool moved = false;
    for (int64_t b = 0; b < probe.B; ++b) {
      const int64_t at = b * probe.T * row, n = t * row;
      moved |= !SameBits(before[i].values.subspan(at, n), after[i].values.subspan(at, n));
    }
    if (!moved) continue;
    if (finding.value == 0) finding.note = fmt::format("first in {}", before[i].name);
    ++finding.value;
  }
  if (finding.note.empty()) finding.note = fmt::format("{} tensors", before.size());
  return finding;
}

Result<Finding> CheckCached(Probe& probe) {
  if (probe.T < 2) return NoPast();
  return CacheFinding(probe, std::vector<int64_t>(probe.T, 1));
}

Result<Finding> CheckChunked(Probe& probe) {
  if (probe.T < 2) return NoPast();
  // 3 and 4 where there is room for them, then the rest.
  std::vector<int64_t> pieces;
  int64_t left = probe.T;
  for (const int64_t n : {int64_t{3}, int64_t{4}, left}) {
    const int64_t piece = std::min(n, left);
    if (piece > 0) pieces.push_back(piece);
    left -= piece;
  }
  HEED_ASSIGN(Finding finding, CacheFinding(probe, pieces));
  finding.note += fmt::format("; pieces {}", fmt::join(pieces, " + "));
  return finding;
}

Result<Finding> CheckPositionsAfterPrompt(Probe& probe) {
  const ModelConfig& c = probe.config();
  if (c.position == Position::kNone) return NotApplicable("this model knows no positions");
  constexpr int64_t kPrompt = 2;
  if (probe.T <= kPrompt) return NotApplicable("block_size leaves no room behind a prompt of 2");
  HEED_ASSIGN(const auto cache, KvCache::Create(c, 1, kPrompt + 1));
  Pass pass = probe.model.NewPass(1, kPrompt);
  const std::span<const int32_t> tokens = probe.tokens;
  std::vector<KeyValueCache> layers = cache->Extend(0, 1, kPrompt, &pass.offsets);
  HEED_TRY(Taps::Run(probe.model, pass, tokens, layers));
  pass = probe.model.NewPass(1, 1);
  layers = cache->Extend(0, 1, 1, &pass.offsets);
  HEED_ASSIGN(const Taps next, Taps::Run(probe.model, pass, tokens.subspan(kPrompt), layers));
  HEED_ASSIGN(const Taps whole,
              Taps::Run(probe.model, probe.model.NewPass(1, kPrompt + 1), tokens));
  // What enters the first attention depends on no other position.
  Finding finding{0, kSameNumbers};
  for (const char* name : {"embedded", "h.0.attn.qkv"}) {
    const std::span<const float> got = next.Find(name), want = whole.Find(name);
    finding.value = Worse(finding.value, RelativeError(got, want.last(got.size())));
    const std::span<const float> first = want.first(got.size());
    if (finding.value > finding.bound && RelativeError(got, first) < finding.value) {
      finding.note = "nearer to position 0 than to position 2";
    }
  }
  return finding;
}

Result<Finding> CheckPadding(Probe& probe) {
  if (probe.T < 2) return NoPast();
  const int64_t n = (2 * probe.T + 2) / 3, V = probe.config().vocab_size;
  std::vector<int32_t> shorter;
  for (int64_t b = 0; b < probe.B; ++b) {
    const auto first = probe.tokens.begin() + b * probe.T;
    shorter.insert(shorter.end(), first, first + n);
  }
  HEED_ASSIGN(const std::vector<float> padded, probe.Logits());
  HEED_ASSIGN(const std::vector<float> plain, probe.Logits(shorter, probe.B));
  Finding finding{0, kSameNumbers};
  finding.note = fmt::format("{} positions behind {}", probe.T - n, n);
  for (int64_t b = 0; b < probe.B; ++b) {
    finding.value =
        Worse(finding.value, RelativeError(std::span(padded).subspan(b * probe.T * V, n * V),
                                           std::span(plain).subspan(b * n * V, n * V)));
  }
  return finding;
}

Result<Finding> CheckBatch(Probe& probe) {
  const int64_t B = probe.B, T = probe.T, V = probe.config().vocab_size;
  HEED_ASSIGN(const std::vector<float> together, probe.Logits());
  Finding finding{0, kSameNumbers};
  for (int64_t b = 0; b < B; ++b) {
    const auto row = std::span(probe.tokens).subspan(b * T, T);
    HEED_ASSIGN(const std::vector<float> alone, probe.Logits(row, 1));
    finding.value =
        Worse(finding.value, RelativeError(std::span(together).subspan(b * T * V, T * V), alone));
  }
  if (T <= B) return finding;
  // Rows of 1, 2, 3, ... cached positions that take their next token together.
  HEED_ASSIGN(const auto cache, KvCache::Create(probe.config(), B, T));
  HEED_ASSIGN(const auto activations, Activations::Create(probe.model, B, T, /*training=*/false));
  std::vector<int32_t> next;
  for (int64_t b = 0; b < B; ++b) {
    Pass pass = probe.model.NewPass(1, b + 1);
    const std::vector<KeyValueCache> layers = cache->Extend(b, 1, b + 1, &pass.offsets);
    probe.model.Forward(pass, &probe.tokens[b * T], activations.get(), layers);
    next.push_back(probe.tokens[b * T + b + 1]);
  }
  Pass pass = probe.model.NewPass(B, 1);
  const std::vector<KeyValueCache> layers = cache->Extend(0, B, 1, &pass.offsets);
  const float* x = probe.model.Forward(pass, next.data(), activations.get(), layers);
  std::vector<float> logits(B * V);
  probe.model.Logits(pass, x, B, activations.get(), logits.data());
  for (int64_t b = 0; b < B; ++b) {
    const auto want = std::span(together).subspan((b * T + b + 1) * V, V);
    finding.value = Worse(finding.value, RelativeError(std::span(logits).subspan(b * V, V), want));
  }
  finding.note = fmt::format("and rows of 1 to {} cached positions at once", B);
  return finding;
}

}  // namespace heed
