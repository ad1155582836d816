#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/diagnose/attention_fault_lists.h"

namespace heed::attention_faults {
namespace {

Variants RopePairing_(const AttentionFacts& f) {
  if (!f.pairing_stated) return {};
  return Turned(f, [](Recipe* r) { r->rotate.interleaved = !r->rotate.interleaved; });
}

Variants RopeNotReinterleaved(const AttentionFacts& f) {
  if (f.rotary == 0) return {};
  const auto halves = [](bool q, bool k) {
    return [q, k](Recipe* r) {
      r->rotate.q_halves = q;
      r->rotate.k_halves = k;
    };
  };
  return {One(halves(true, false), "of q"), One(halves(false, true), "of k"),
          One(halves(true, true), "of q and k")};
}

Variants RopeByHead(const AttentionFacts& f) {
  return Turned(f, [](Recipe* r) { r->rotate.by_head = true; });
}

Variants Senses(const AttentionFacts& f, double q, double k, std::string detail = "") {
  if (f.rotary == 0) return {};
  return {One(
      [q, k](Recipe* r) {
        r->rotate.q_sense = q;
        r->rotate.k_sense = k;
      },
      std::move(detail))};
}

Variants RopeMissing(const AttentionFacts& f) {
  return Joined(Senses(f, 0, 0, "of q and k"),
                Joined(Senses(f, 0, 1, "of q"), Senses(f, 1, 0, "of k")));
}

Variants RopeSign(const AttentionFacts& f) { return Senses(f, -1, -1); }

Variants RopeKSign(const AttentionFacts& f) {
  return Joined(Senses(f, 1, -1, "k turns backwards"), Senses(f, -1, 1, "q turns backwards"));
}

Variants RopeOnV(const AttentionFacts& f) {
  return Turned(f, [](Recipe* r) { r->rotate.v_sense = 1; });
}

Fits RopeTheta(const AttentionFacts& f) {
  if (f.rotary < 4) return {};
  std::vector<double> grid;
  for (double theta = 1.5; theta < 3e8; theta *= 1.6) grid.push_back(theta);
  // What checkpoints have.
  for (const double theta : {100., 1000., 1e4, 1e5, 5e5, 1e6, 5e6}) grid.push_back(theta);
  std::ranges::sort(grid);
  return {{.grid = std::move(grid),
           .change = [](double theta, Recipe* r) { r->rotate.theta = theta; },
           .belongs = [right = f.theta](
                          double theta) { return std::abs(std::log(theta / right)) > 0.003; },
           .detail = [](double theta) { return fmt::format("theta {:.6g}", theta); }}};
}

Variants Widths(const AttentionFacts& f, std::vector<std::pair<WidthChoice, const char*>> kinds) {
  if (f.rotary == 0 || f.rotary == f.D) return {};
  Variants variants;
  for (const auto& [width, detail] : kinds) {
    variants.push_back(One([width = width](Recipe* r) { r->rotate.width = width; }, detail));
  }
  return variants;
}

Variants RopePartialIgnored(const AttentionFacts& f) {
  return Widths(f, {{WidthChoice::kWholeHead, ""}});
}

Variants RopeWidth(const AttentionFacts& f) {
  return Widths(f, {{WidthChoice::kHeadBoth, "exponents and partners"},
                    {WidthChoice::kHeadExponent, "exponents"},
                    {WidthChoice::kHeadPartner, "partners"}});
}

Variants RopeLowPrecision(const AttentionFacts& f) {
  if (f.rotary == 0) return {};
  const std::pair<AngleRounding, const char*> kinds[] = {
      {AngleRounding::kPositions, "positions"},
      {AngleRounding::kFrequencies, "frequencies"},
      {AngleRounding::kAngles, "angles"},
      {AngleRounding::kTables, "cosines and sines"},
      {AngleRounding::kAll, "all"}};
  Variants variants;
  for (const bool half : {false, true}) {
    for (const auto& [what, name] : kinds) {
      variants.push_back(One(
          [half, what = what](Recipe* r) {
            r->rotate.rounding = what;
            r->rotate.rounding_is_half = half;
          },
          fmt::format("{} in {}", name, half ? "float16" : "bfloat16")));
    }
  }
  return variants;
}

Variants RopeForm(const AttentionFacts& f, RotationForm form) {
  return Turned(f, [form](Recipe* r) { r->rotate.form = form; });
}

Variants RopeMixed(const AttentionFacts& f) { return RopeForm(f, RotationForm::kMixedLayouts); }
Variants RopeCosPlusSin(const AttentionFacts& f) { return RopeForm(f, RotationForm::kCosPlusSin); }

const AttentionFault kFaults[] = {
    {{"rope_pairing", "the other pairing of channels: (2i, 2i+1) for (i, i+D/2), or the reverse",
      "pair as the weights expect",
      "x1, x2 = x[..., :D // 2], x[..., D // 2:]  # or x[..., 0::2], x[..., 1::2]",
      "x0 = x[i]; x1 = x[i + D / 2];", "row 0 is equal, the difference grows with the position"},
     RopePairing_},
    {{"rope_missing", "q, k or both are not rotated", "rotate q and k on every path",
      "q, k = rope(q, pos), rope(k, pos)", "rotate(q, position); rotate(k, position);",
      "permute the tokens before the last: without rotation its row does not move"},
     RopeMissing},
    {{"rope_sign", "q and k rotate the other way", "turn by +position * frequency",
      "y1, y2 = x1 * cos - x2 * sin, x1 * sin + x2 * cos", "y0 = x0 * c - x1 * s;",
      "replay with negative positions"},
     RopeSign},
    {{"rope_k_sign_only", "q and k rotate in opposite senses", "turn both by +position * frequency",
      "q, k = rope(q, pos), rope(k, pos)", "rotate(q, position); rotate(k, position);",
      "shift all positions by 7: the output must not move"},
     RopeKSign},
    {{"rope_on_v", "values are rotated too", "rotate q and k alone",
      "q, k = rope(q, pos), rope(k, pos)", "rotate(q, position); rotate(k, position);",
      "row 0 at position 0 is equal; v differs from x W_v by a rotation"},
     RopeOnV},
    {{"rope_output_not_reinterleaved", "rotated halves are joined, not interleaved again",
      "put even and odd channels back in their places",
      "y = torch.stack([y1, y2], dim=-1).flatten(-2)", "y[2 * i] = y0; y[2 * i + 1] = y1;",
      "of q alone: differs at position 0 too; of both: the scores are equal"},
     RopeNotReinterleaved},
    {{"rope_wrong_axis", "angles follow the index of the head, not of time",
      "index the tables by position", "cos = cos[pos][None, None]  # x is [B, H, T, D]",
      "angle = position * frequency[i];",
      "permute the tokens before the last: its row must move, and does not"},
     RopeByHead},
    {{"rope_partial_ignored", "the whole head is rotated where only its first part should be",
      "rotate the first rotary_dim channels", "x_rot, x_pass = x[..., :r], x[..., r:]",
      "for (int64_t i = 0; i < rotary_dim / 2; ++i) turn(x, i);",
      "the tail channels of q_rot must equal q"},
     RopePartialIgnored},
    {{"rope_freq_width", "a partial rotation takes exponents or partners from the head's width",
      "use rotary_dim for both", "inv_freq = theta ** (-torch.arange(0, r, 2) / r)",
      "frequency = std::pow(theta, -2.0 * i / rotary_dim);",
      "row 0 is equal; compare the rotated q, not the tables"},
     RopeWidth},
    {{"rope_low_precision", "positions, angles or tables are rounded to 16 bits",
      "compute angles in float32 at least", "angle = pos.float()[:, None] * inv_freq.float()",
      "const double angle = position * frequency;",
      "nearly equal at small positions, worse with length"},
     RopeLowPrecision},
    {{"rope_mixed_layouts", "tables laid out for one pairing meet the other's partners",
      "lay out the tables as the channels are paired",
      "cos = torch.cat([c, c], dim=-1)  # halves; interleaved: c.repeat_interleave(2, -1)",
      "c = cos[i]; x0 = x[i]; x1 = x[i + D / 2];",
      "partners turn by different angles, so that lengths change"},
     RopeMixed},
    {{"rope_cos_plus_sin", "x (cos + sin) stands for a rotation", "multiply sin by the turned x",
      "y = x * cos + rotate_half(x) * sin", "y0 = x0 * c - x1 * s; y1 = x0 * s + x1 * c;",
      "lengths change with the position"},
     RopeCosPlusSin},
    {{"rope_theta", "the base of the angles is another", "use the base of the checkpoint",
      "inv_freq = theta ** (-torch.arange(0, D, 2) / D)",
      "frequency = std::pow(theta, -2.0 * i / D);", "fit theta to q_rot and k_rot"},
     nullptr,
     RopeTheta},
};

}  // namespace

std::span<const AttentionFault> OfPositions() { return kFaults; }

}  // namespace heed::attention_faults
