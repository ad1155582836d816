#include "verify/diagnose/attention_replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/random.h"
#include "tensor/convert.h"
#include "verify/diagnose/attention_softmax.h"
#include "verify/diagnose/block_recipe.h"
#include "verify/diagnose/noise.h"
#include "verify/diagnose/product.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// [rows, columns] -> [columns, rows], of a square matrix that was read the other way.
void TransposeSquare(int64_t n, double* matrix) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) std::swap(matrix[i * n + j], matrix[j * n + i]);
  }
}

double RoundTo16(double value, bool half) {
  return half ? F16ToFloat(DoubleToF16(value)) : Bf16ToFloat(DoubleToBf16(value));
}

// The bits of one 16-bit type read as the other.
double Reinterpret(double value, bool from_bf16) {
  return from_bf16 ? F16ToFloat(DoubleToBf16(value)) : Bf16ToFloat(DoubleToF16(value));
}

bool HidesPadding(const MaskChoice& mask) {
  return mask.pads == PadChoice::kHidden || mask.pads == PadChoice::kReversed;
}

// The recipe with every choice behind `last` at its default: what a stage depends on.
AttentionRecipe UpTo(Stage last, const AttentionRecipe& recipe) {
  AttentionRecipe key;
  key.project = recipe.project;
  // The output projection's own choices belong to the last stage.
  if (last != Stage::kY) {
    key.project.without_bias &= ~kOProj;
    key.project.transposed &= ~kOProj;
  }
  if (last >= Stage::kQRot) {
    key.norm = recipe.norm;
    key.rotate = recipe.rotate;
  }
  if (last >= Stage::kScores) {
    key.cache = recipe.cache;
    key.score = recipe.score;
  }
  if (last >= Stage::kPattern) {
    key.mask = recipe.mask;
    key.softmax = recipe.softmax;
  }
  if (last >= Stage::kZ) key.combine.transposed = recipe.combine.transposed;
  if (last >= Stage::kMerged) key.combine.merge = recipe.combine.merge;
  return key;
}

}  // namespace

std::string_view NameOf(Stage stage) {
  constexpr std::string_view kNames[kStageCount] = {"q",      "k",       "v", "q_rot",  "k_rot",
                                                    "scores", "pattern", "z", "merged", "y"};
  return kNames[static_cast<int>(stage)];
}

namespace {

// BlankPadding of the rows at these positions.
void BlankPaddedRows(const AttentionCase& attention, const AttentionContext& context, Stage stage,
                     std::span<const int64_t> positions, std::vector<double>* values) {
  if (!context.Padded() || stage <= Stage::kV) return;
  const int64_t B = attention.B, P = attention.P, S = attention.S();
  const auto R = std::ssize(positions), size = std::ssize(*values);
  // Rows [B, heads, R, width]; merged and y have no heads before the positions.
  const bool by_head = stage < Stage::kMerged;
  const int64_t heads = !by_head                ? 1
                        : stage == Stage::kKRot ? attention.settings.n_kv_head
                                                : attention.settings.n_head;
  const int64_t width = size / (B * heads * R);
  // What a row without a key becomes is looked at where it is stated.
  const bool keyless = context.rows_without_keys && stage >= Stage::kPattern;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t b = i / (heads * R * width), t = positions[i / width % R];
    const auto first = context.attention_mask.begin() + b * S;
    if (keyless && std::count(first, first + P + t + 1, 1) == 0) continue;
    const bool pad_key =
        stage == Stage::kScores && width == S && context.attention_mask[b * S + i % width] == 0;
    if (context.attention_mask[b * S + P + t] != 0 && !pad_key) continue;
    double& value = (*values)[i];
    if (!std::isnan(value)) value = 0;
  }
}

// Whether a row of what follows the rotation depends on other positions' queries.
bool MixesRows(const AttentionRecipe& recipe) {
  const SoftmaxKind kind = recipe.softmax.kind;
  return recipe.project.batch_as_time || recipe.combine.transposed ||
         recipe.combine.merge == MergeKind::kUntransposed || kind == SoftmaxKind::kQueries ||
         kind == SoftmaxKind::kMaximumOfKeys || kind == SoftmaxKind::kMaximumOfQueries;
}

}  // namespace

void BlankPadding(const AttentionCase& attention, const AttentionContext& context, Stage stage,
                  std::vector<double>* values) {
  std::vector<int64_t> positions(attention.T);
  std::iota(positions.begin(), positions.end(), 0);
  BlankPaddedRows(attention, context, stage, positions, values);
}

std::vector<double> RowsAt(std::span<const int64_t> positions, int64_t T, int64_t width,
                           std::span<const double> values) {
  std::vector<double> rows;
  rows.reserve(values.size() / T * positions.size());
  for (auto outer = values.begin(); outer != values.end(); outer += T * width) {
    for (const int64_t t : positions) {
      rows.insert(rows.end(), outer + t * width, outer + (t + 1) * width);
    }
  }
  return rows;
}

AttentionReplay::AttentionReplay(const AttentionCase& attention, const AttentionContext& context,
                                 Perturbation perturbation)
    : case_(attention),
      context_(context),
      H_(attention.settings.n_head),
      Hkv_(attention.settings.n_kv_head),
      D_(attention.settings.head_dim),
      perturbation_(perturbation),
      x_(Perturbed(attention.x, Draws::kX)),
      weight_(Perturbed(attention.qkv.weight, Draws::kWeight)),
      bias_(Perturbed(attention.qkv.bias, Draws::kBias)),
      out_weight_(Perturbed(attention.proj.weight, Draws::kOutWeight)),
      past_k_(Perturbed(attention.past_k, Draws::kPastK)),
      past_v_(Perturbed(attention.past_v, Draws::kPastV)),
      given_{attention.q, attention.k, attention.v},
      every_row_(std::max(attention.B, attention.T)) {
  std::iota(every_row_.begin(), every_row_.end(), 0);
  Perturb(Draws::kQ, &given_.q);
  Perturb(Draws::kK, &given_.k);
  Perturb(Draws::kV, &given_.v);
}

// The numbers where they lie, unless they are to be others.
std::span<const double> AttentionReplay::Perturbed(const Numbers& values, Draws draws) {
  if (perturbation_.unit == 0) return values;
  perturbed_.push_back(values);
  Perturb(draws, &perturbed_.back());
  return perturbed_.back();
}

void AttentionReplay::Perturb(Draws draws, Numbers* values) const {
  if (perturbation_.unit == 0) return;
  const RandomKey key{perturbation_.seed, 0, static_cast<uint32_t>(draws)};
  uint64_t draw = 0;
  for (double& value : *values) {
    value *= 1 + perturbation_.unit * (2 * RandomUniform(key, draw++) - 1);
  }
}

template <class T>
std::shared_ptr<const T> AttentionReplay::Recall(Memo<T>* memo, const AttentionRecipe& key,
                                                 const std::function<T()>& compute) {
  for (const auto& [made_by, result] : memo->kept) {
    if (made_by == key) return result;
  }
  constexpr size_t kLeast = 2, kMostNumbers = size_t{1} << 24;
  const auto made = std::make_shared<const T>(compute());
  memo->kept.emplace_front(key, made);
  memo->numbers += CountOf(*made);
  while (memo->kept.size() > kLeast &&
         (memo->kept.size() > memo->most || memo->numbers > kMostNumbers)) {
    memo->numbers -= CountOf(*memo->kept.back().second);
    memo->kept.pop_back();
  }
  return made;
}

AttentionReplay::Sizes AttentionReplay::SizesOf(const AttentionRecipe& recipe) const {
  if (recipe.project.batch_as_time) return {case_.T, case_.B, 0};
  return {case_.B, case_.T, case_.P};
}

AttentionReplay::Shared AttentionReplay::Tensor(const AttentionRecipe& recipe, Stage stage) {
  return Blanked(stage, Made(recipe, stage));
}

void AttentionReplay::LookAt(std::vector<int64_t> positions) {
  looked_at_ = std::move(positions);
  few_ = {};
}

AttentionReplay::Shared AttentionReplay::Glance(const AttentionRecipe& recipe, Stage stage) {
  if (stage < Stage::kScores || MixesRows(recipe)) return nullptr;
  glancing_ = true;
  Shared glance = Blanked(stage, Made(recipe, stage));
  glancing_ = false;
  return glance;
}

AttentionReplay::Shared AttentionReplay::Blanked(Stage stage, Shared made) const {
  if (!context_.Padded()) return made;
  Numbers blanked = *made;
  const std::span<const int64_t> every = std::span(every_row_).first(case_.T);
  BlankPaddedRows(case_, context_, stage, glancing_ ? looked_at_ : every, &blanked);
  return std::make_shared<const Numbers>(std::move(blanked));
}

// The positions whose rows are computed from the scores on.
std::span<const int64_t> AttentionReplay::PositionsOf(const AttentionRecipe& recipe) const {
  if (glancing_) return looked_at_;
  return std::span(every_row_).first(SizesOf(recipe).T);
}

// Row [B, H, R] of those that are computed as row [B, H, T].
int64_t AttentionReplay::FullRow(const AttentionRecipe& recipe, int64_t row) const {
  const std::span<const int64_t> positions = PositionsOf(recipe);
  const auto R = std::ssize(positions);
  return row / R * SizesOf(recipe).T + positions[row % R];
}

AttentionReplay::Shared AttentionReplay::Made(const AttentionRecipe& recipe, Stage stage) {
  switch (stage) {
    case Stage::kQ: {
      const auto heads = Projected(recipe);
      return {heads, &heads->q};
    }
    case Stage::kK: {
      const auto heads = Projected(recipe);
      return {heads, &heads->k};
    }
    case Stage::kV: {
      const auto heads = Projected(recipe);
      return {heads, &heads->v};
    }
    case Stage::kQRot: {
      const auto heads = Rotated(recipe);
      return {heads, &heads->q};
    }
    case Stage::kKRot: {
      const auto heads = Rotated(recipe);
      return {heads, &heads->k};
    }
    case Stage::kScores:
      return Scores(recipe);
    case Stage::kPattern:
      return Pattern(recipe);
    case Stage::kZ:
      return Z(recipe);
    case Stage::kMerged:
      return Merged(recipe);
    case Stage::kY:
      return Output(recipe);
  }
  return nullptr;
}

// ------------------------------------------------------------------ projection

// The rows of `slot` out of the joined weight [H·D + 2 Hkv·D, C] and their bias, as `choice` reads
// them.
AttentionReplay::SlotRows AttentionReplay::SlotRowsOf(const ProjectChoice& choice,
                                                      Slot slot) const {
  const int64_t C = case_.qkv.in;
  const int64_t heads[3] = {H_, Hkv_, Hkv_};
  const int64_t first[3] = {0, H_ * D_, (H_ + Hkv_) * D_};
  const auto s = static_cast<size_t>(slot);
  std::vector<int64_t> from;
  if (choice.fused_pieces == 0) {
    from.resize(heads[s] * D_);
    std::iota(from.begin(), from.end(), first[s]);
  } else {
    // Where the stored rows begin with each piece's share of each slot.
    const std::vector<int64_t>& stored = case_.qkv.parts[0].rows;
    auto at = stored.begin();
    for (int64_t piece = 0; piece < choice.fused_pieces; ++piece) {
      for (const Slot part : choice.fused_order) {
        const int64_t rows = heads[static_cast<size_t>(part)] / choice.fused_pieces * D_;
        if (part == slot) from.insert(from.end(), at, at + rows);
        at += rows;
      }
    }
  }
  const uint8_t bit = uint8_t{1} << s;
  SlotRows rows;
  for (const int64_t row : from) {
    rows.bias.push_back((choice.without_bias & bit) != 0 ? 0 : bias_[row]);
  }
  const auto parted = [](int64_t a, int64_t b) { return b != a + 1; };
  if (std::ranges::adjacent_find(from, parted) == from.end() && (choice.transposed & bit) == 0) {
    rows.weight = weight_.subspan(from[0] * C, static_cast<int64_t>(from.size()) * C);
    return rows;
  }
  for (const int64_t row : from) {
    const auto begin = weight_.begin() + row * C;
    rows.moved.insert(rows.moved.end(), begin, begin + C);
  }
  if (choice.transposed & bit) TransposeSquare(C, rows.moved.data());
  rows.weight = rows.moved;
  return rows;
}

// [B, heads, T, D] of one slot.
AttentionReplay::Numbers AttentionReplay::ProjectSlot(const ProjectChoice& choice, Slot slot,
                                                      int64_t heads) {
  const int64_t B = case_.B, T = case_.T, C = case_.qkv.in;
  const SlotRows from = SlotRowsOf(choice, slot);
  Numbers rows(B * T * heads * D_);
  for (int64_t r = 0; r < B * T; ++r) std::ranges::copy(from.bias, rows.begin() + r * heads * D_);
  AddProduct(x_, from.weight, B * T, heads * D_, C, rows);
  work_ += static_cast<double>(B * T * heads * D_ * C);
  Perturb(slot == Slot::kQ ? Draws::kQ : slot == Slot::kK ? Draws::kK : Draws::kV, &rows);
  if (choice.split_by_view) return rows;
  Numbers split(rows.size());
  for (int64_t r = 0; r < B * T; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(&rows[(r * heads + h) * D_], D_, &split[((r / T * heads + h) * T + r % T) * D_]);
    }
  }
  return split;
}

AttentionReplay::Shared AttentionReplay::RecallSlot(const ProjectChoice& choice, Slot slot,
                                                    int64_t heads) {
  const auto bit = static_cast<uint8_t>(1 << static_cast<int>(slot));
  AttentionRecipe key;
  key.project = choice;
  key.project.source.fill(slot);
  key.project.without_bias &= bit;
  key.project.transposed &= bit;
  key.project.batch_as_time = false;
  return Recall<Numbers>(&slots_, key, [&] { return ProjectSlot(choice, slot, heads); });
}

std::shared_ptr<const AttentionReplay::Heads> AttentionReplay::Projected(
    const AttentionRecipe& recipe) {
  return Recall<Heads>(&projected_, UpTo(Stage::kQ, recipe), [&] {
    const ProjectChoice& choice = recipe.project;
    Heads heads;
    Numbers* slots[3] = {&heads.q, &heads.k, &heads.v};
    const Numbers* given[3] = {&given_.q, &given_.k, &given_.v};
    const int64_t counts[3] = {H_, Hkv_, Hkv_};
    for (int s = 0; s < 3; ++s) {
      const auto source = static_cast<size_t>(choice.source[s]);
      *slots[s] = case_.qkv.parts.empty() ? *given[source]
                                          : *RecallSlot(choice, choice.source[s], counts[source]);
      if (!choice.batch_as_time) continue;
      // [B, heads, T, D] -> [T, heads, B, D].
      const int64_t n = counts[source];
      Numbers turned(slots[s]->size());
      for (int64_t r = 0; r < case_.B * n * case_.T; ++r) {
        const int64_t b = r / (n * case_.T), h = r / case_.T % n, t = r % case_.T;
        std::copy_n(&(*slots[s])[r * D_], D_, &turned[((t * n + h) * case_.B + b) * D_]);
      }
      *slots[s] = std::move(turned);
    }
    return heads;
  });
}

// ------------------------------------------------------------------ rotation

namespace {

// Angles [positions, pairs] and the channels that turn together.
struct Rotation {
  std::vector<double> cos, sin;
  std::vector<std::pair<int64_t, int64_t>> pairs;
};

std::pair<int64_t, int64_t> Channels(const RotateChoice& choice, int64_t pair, int64_t offset) {
  return choice.interleaved ? std::pair(2 * pair, 2 * pair + 1) : std::pair(pair, pair + offset);
}

}  // namespace

// The number of token t of batch row b, P of them before the chunk.
int64_t AttentionReplay::PositionOf(const RotateChoice& choice, int64_t b, int64_t t,
                                    int64_t P) const {
  const auto counted = [&](int64_t at) -> int64_t {
    switch (choice.base) {
      case PositionBase::kIndex:
        break;
      case PositionBase::kGiven:
        return context_.position_ids[b * case_.T + at];
      case PositionBase::kTokens:
      case PositionBase::kTokensPadsOne: {
        const auto row = context_.attention_mask.begin() + b * case_.S();
        if (choice.base == PositionBase::kTokensPadsOne && row[P + at] == 0) return 1;
        return std::count(row, row + P + at, 1) + choice.first;
      }
      case PositionBase::kDocument: {
        const auto row = context_.document_ids.begin() + b * case_.T;
        int64_t first = at;
        while (first > 0 && row[first - 1] == row[at]) --first;
        return at - first + choice.first;
      }
    }
    return P + at + choice.first;
  };
  switch (choice.position) {
    case PositionChoice::kAbsolute:
      return counted(t);
    case PositionChoice::kRestart:
      return t + choice.first;
    case PositionChoice::kChunkConstant:
      return counted(0);
    case PositionChoice::kOneTooFar:
      return counted(t) + 1;
    case PositionChoice::kKeptRows:
      return P + t;
  }
  return t;
}

// Turns x [B, heads, T, D] by `sense` times the angles of its positions.
void AttentionReplay::Turn(const AttentionRecipe& recipe, int64_t heads, double sense, bool halves,
                           bool keys, Numbers* x) {
  RotateChoice choice = recipe.rotate;
  if (recipe.project.batch_as_time) choice.base = PositionBase::kIndex;
  const auto [B, T, P] = SizesOf(recipe);
  const int64_t rotary = choice.width == WidthChoice::kWholeHead ? D_ : case_.settings.rotary_dim;
  if (sense == 0 || rotary == 0) return;
  const bool head_exponent =
      choice.width == WidthChoice::kHeadExponent || choice.width == WidthChoice::kHeadBoth;
  const bool head_partner =
      choice.width == WidthChoice::kHeadPartner || choice.width == WidthChoice::kHeadBoth;
  const int64_t pairs = rotary / 2, offset = (head_partner ? D_ : rotary) / 2;
  const auto rounded = [&](AngleRounding what, double value) {
    const bool rounds = choice.rounding == what || choice.rounding == AngleRounding::kAll;
    return rounds ? RoundTo16(value, choice.rounding_is_half) : value;
  };
  const double table_unit = std::min(perturbation_.unit, UnitRoundoff(DType::kF32));
  const RandomKey key{perturbation_.seed, 1, 0};
  const std::vector<double> frequencies =
      RopeFrequencies(head_exponent ? D_ : rotary, choice.theta, choice.scaling);
  const double magnitude = RopeMagnitude(choice.scaling);
  // The angle at a position.
  const auto angle = [&](int64_t position, int64_t pair) {
    const double frequency = rounded(AngleRounding::kFrequencies, frequencies[pair]);
    const double exact =
        rounded(AngleRounding::kPositions, static_cast<double>(position)) * frequency;
    // A table's error is the same wherever the angle is used.
    const double error = table_unit * (2 * RandomUniform(key, position * pairs + pair) - 1);
    return rounded(AngleRounding::kAngles, exact) * (1 + error) * sense;
  };
  const auto cosine = [&](double a) {
    return rounded(AngleRounding::kTables, magnitude * std::cos(a));
  };
  const auto sine = [&](double a) {
    return rounded(AngleRounding::kTables, magnitude * std::sin(a));
  };
  // Tables [T, pairs], of every batch row where each counts for itself, or [heads, pairs].
  const bool each = !choice.by_head && choice.base != PositionBase::kIndex;
  const int64_t rows = choice.by_head ? heads : each ? B * T : T;
  Numbers cos(rows * pairs), sin(rows * pairs);
  for (int64_t r = 0; r < rows; ++r) {
    int64_t position = choice.by_head ? choice.first + r : PositionOf(choice, r / T, r % T, P);
    if (keys && choice.key_piece > 0) position = r % T % choice.key_piece;
    if (keys && choice.first_piece > 0 && r % T >= choice.first_piece) {
      position -= choice.first_piece;
    }
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const double a = angle(position, pair);
      cos[r * pairs + pair] = cosine(a);
      sin[r * pairs + pair] = sine(a);
    }
  }
  work_ += static_cast<double>(4 * B * heads * T * pairs);
  Numbers turned(D_);
  for (int64_t r = 0; r < B * heads * T; ++r) {
    double* row = x->data() + r * D_;
    std::copy_n(row, D_, turned.begin());
    const int64_t table = (choice.by_head ? r / T % heads
                           : each         ? r / (heads * T) * T + r % T
                                          : r % T) *
                          pairs;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const auto [c0, c1] = Channels(choice, pair, offset);
      int64_t i0 = table + pair, i1 = i0;
      if (choice.form == RotationForm::kMixedLayouts) {
        i0 = table + (choice.interleaved ? c0 % pairs : c0 / 2);
        i1 = table + (choice.interleaved ? c1 % pairs : c1 / 2);
      }
      if (choice.form == RotationForm::kCosPlusSin) {
        turned[c0] = row[c0] * (cos[i0] + sin[i0]);
        turned[c1] = row[c1] * (cos[i1] + sin[i1]);
      } else {
        turned[c0] = row[c0] * cos[i0] - row[c1] * sin[i0];
        turned[c1] = row[c1] * cos[i1] + row[c0] * sin[i1];
      }
    }
    std::copy_n(turned.begin(), D_, row);
    for (int64_t pair = 0; pair < pairs && halves; ++pair) {
      row[pair] = turned[2 * pair];
      row[pair + pairs] = turned[2 * pair + 1];
    }
  }
  Perturb(keys ? Draws::kTurnedK : Draws::kTurned, x);
}

std::shared_ptr<const AttentionReplay::Heads> AttentionReplay::Rotated(
    const AttentionRecipe& recipe) {
  return Recall<Heads>(&rotated_, UpTo(Stage::kQRot, recipe), [&] {
    Heads heads = *Projected(recipe);
    const RotateChoice& choice = recipe.rotate;
    const int64_t width = SizesOf(recipe).B * SizesOf(recipe).T * D_;
    const auto count = [&](const Numbers& x) { return static_cast<int64_t>(x.size()) / width; };
    const auto normalise = [&](NormPlace place) {
      if (recipe.norm.place != place) return;
      if (recipe.norm.q) NormaliseHeads(recipe, context_.q_norm, &heads.q);
      if (recipe.norm.k) NormaliseHeads(recipe, context_.k_norm, &heads.k);
      Perturb(Draws::kNormQ, &heads.q);
      Perturb(Draws::kNormK, &heads.k);
    };
    normalise(NormPlace::kBeforeRotation);
    Turn(recipe, count(heads.q), choice.q_sense, choice.q_halves, false, &heads.q);
    Turn(recipe, count(heads.k), choice.k_sense, choice.k_halves, true, &heads.k);
    Turn(recipe, count(heads.v), choice.v_sense, false, false, &heads.v);
    normalise(NormPlace::kAfterRotation);
    return heads;
  });
}

// x [B, heads, T, D].
void AttentionReplay::NormaliseHeads(const AttentionRecipe& recipe, const HeadGain& gain,
                                     Numbers* x) const {
  const HeadNormChoice& choice = recipe.norm;
  const int64_t B = SizesOf(recipe).B, T = SizesOf(recipe).T;
  const int64_t rows = B * T, heads = static_cast<int64_t>(x->size()) / (rows * D_);
  const int64_t width = choice.all_heads ? heads * D_ : D_;
  const NormChoice norm{.rms = !choice.layer, .eps = choice.eps};
  // A faulty source may bring another number of heads.
  const bool gains = choice.gain && !gain.values.empty();
  const bool biases = choice.bias && !gain.bias.empty();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t b = r / T, t = r % T;
    const auto at = [&](int64_t c) -> double& {
      return (*x)[((b * heads + c / D_) * T + t) * D_ + c % D_];
    };
    for (int64_t first = 0; first < heads * D_; first += width) {
      const Moments moments = MomentsOf(norm, width, [&](int64_t c) { return at(first + c); });
      for (int64_t c = first; c < first + width; ++c) {
        const double factor = gains ? gain.values[c % gain.values.size()] + choice.gain_offset : 1;
        const double shift = biases ? gain.bias[c % gain.bias.size()] : 0;
        at(c) = (at(c) - moments.mean) * moments.rstd * factor + shift;
      }
    }
  }
}

// ------------------------------------------------------------------ cache and scores

int64_t AttentionReplay::RingCapacity() const {
  const int64_t window = case_.settings.window;
  return window > 0 && window <= case_.P ? window : case_.P;
}

// Beside sequences that are taken for positions there is no past, and a ring must hold the chunk.
bool AttentionReplay::IsRing(const AttentionRecipe& recipe) const {
  return recipe.cache.cache >= CacheChoice::kRingEarly && recipe.cache.skipped == 0 &&
         !recipe.project.batch_as_time && case_.T < RingCapacity();
}

// The rows that a ring as long as the window, or as the cache, holds behind the chunk, by the
// position of each, from its first slot on.
std::vector<int64_t> AttentionReplay::RingRows(const AttentionRecipe& recipe) const {
  const int64_t T = case_.T, P = case_.P, capacity = RingCapacity();
  std::vector<int64_t> rows(capacity);
  for (int64_t slot = 0; slot < capacity; ++slot) {
    switch (recipe.cache.cache) {
      case CacheChoice::kRingBySlot:
        rows[slot] = P + T - 1 - (P + T - 1 - slot) % capacity;
        break;
      case CacheChoice::kRingClamped:
        rows[slot] = P - capacity + slot + (slot >= capacity - T ? T : 0);
        break;
      default:
        rows[slot] = P + T - capacity + slot;
    }
  }
  return rows;
}

// What is read from the cache for keys or values: [B, Hkv, P, D].
AttentionReplay::Numbers AttentionReplay::PastOf(const AttentionRecipe& recipe, bool keys) {
  const CacheChoice choice = recipe.cache.cache;
  const bool swapped = choice == CacheChoice::kSwapped;
  const std::span<const double> read = keys != swapped ? past_k_ : past_v_;
  Numbers past(read.begin(), read.end());
  const int64_t block = Hkv_ * case_.P * D_;
  if (choice == CacheChoice::kTurnedAgain && keys) {
    // Once more by their own positions: as a chunk of P positions behind nothing.
    AttentionCase turned = case_;
    turned.P = 0;
    turned.T = case_.P;
    AttentionRecipe by_index = recipe;
    by_index.rotate.base = PositionBase::kIndex;
    AttentionReplay(turned).Turn(by_index, Hkv_, 1, false, true, &past);
  } else if (choice == CacheChoice::kBatchReversed) {
    for (int64_t b = 0; b < case_.B / 2; ++b) {
      std::swap_ranges(past.begin() + b * block, past.begin() + (b + 1) * block,
                       past.begin() + (case_.B - 1 - b) * block);
    }
  } else if (choice == CacheChoice::kBatchRolled) {
    std::rotate(past.begin(), past.end() - block, past.end());
  } else if (choice == CacheChoice::kBatchRolledBack) {
    std::rotate(past.begin(), past.begin() + block, past.end());
  } else if (choice == CacheChoice::kBf16ReadAsF16 || choice == CacheChoice::kF16ReadAsBf16) {
    for (double& value : past) value = Reinterpret(value, choice == CacheChoice::kBf16ReadAsF16);
  }
  return past;
}

std::shared_ptr<const AttentionReplay::Joined> AttentionReplay::WithPast(
    const AttentionRecipe& recipe) {
  AttentionRecipe key = UpTo(Stage::kQRot, recipe);
  key.cache = recipe.cache;
  return Recall<Joined>(&joined_, key, [&] {
    Joined joined = Join(recipe);
    Numbers turned(joined.k.size());
    const int64_t S = joined.S, each = S * D_;
    for (int64_t at = 0; at < std::ssize(turned); ++at) {
      turned[at / each * each + at % D_ * S + at % each / D_] = joined.k[at];
    }
    joined.k = std::move(turned);
    return joined;
  });
}

AttentionReplay::Joined AttentionReplay::Join(const AttentionRecipe& recipe) {
  const auto [B, T, P] = SizesOf(recipe);
  const CacheStage& choice = recipe.cache;
  const auto heads = Rotated(recipe);
  const int64_t new_rows = choice.cache == CacheChoice::kHoleLastLost ? T - 1 : T;
  // A hole that costs the last new row lies among the rows before it for reading alone.
  const int64_t past_rows =
      IsRing(recipe) ? P
                     : KeysBefore(recipe) + (choice.cache == CacheChoice::kHoleLastLost ? 1 : 0);
  // A faulty source may bring as many heads as the queries have.
  const int64_t count = static_cast<int64_t>(heads->k.size()) / (B * T * D_);
  Joined joined{.heads = count, .S = past_rows + new_rows};
  for (const bool keys : {true, false}) {
    const Numbers past = PastOf(recipe, keys);
    const Numbers& fresh = keys ? heads->k : heads->v;
    Numbers& to = keys ? joined.k : joined.v;
    to.assign(B * count * joined.S * D_, 0);
    if (choice.cache == CacheChoice::kJoinedFlat) {
      const int64_t old = count * P * D_, added = count * T * D_;
      for (int64_t b = 0; b < B; ++b) {
        std::copy_n(past.begin() + b * old, old, to.begin() + b * (old + added));
        std::copy_n(fresh.begin() + b * added, added, to.begin() + b * (old + added) + old);
      }
      continue;
    }
    for (int64_t r = 0; r < B * count; ++r) {
      const auto row = to.begin() + r * joined.S * D_;
      std::copy_n(past.begin() + r * P * D_, std::min(P, past_rows) * D_, row);
      std::copy_n(fresh.begin() + r * T * D_, new_rows * D_, row + past_rows * D_);
    }
  }
  if (IsRing(recipe)) {
    const std::vector<int64_t> rows = RingRows(recipe);
    const auto capacity = static_cast<int64_t>(rows.size());
    for (Numbers* values : {&joined.k, &joined.v}) {
      Numbers ring(B * count * capacity * D_);
      for (int64_t r = 0; r < B * count * capacity; ++r) {
        const int64_t from = r / capacity * joined.S + rows[r % capacity];
        std::copy_n(&(*values)[from * D_], D_, &ring[r * D_]);
      }
      *values = std::move(ring);
    }
    joined.S = capacity;
  }
  joined.map.resize(H_);
  const int64_t group = std::max<int64_t>(H_ / count, 1);
  for (int64_t h = 0; h < H_; ++h) {
    switch (choice.heads) {
      case HeadMap::kGrouped:
      case HeadMap::kAlongTime:
        joined.map[h] = h / group;
        break;
      case HeadMap::kTiled:
        joined.map[h] = h % count;
        break;
      case HeadMap::kByKvCount:
        joined.map[h] = std::min(h / count, count - 1);
        break;
      case HeadMap::kByKvCountWrapped:
        joined.map[h] = h / count % count;
        break;
      case HeadMap::kFirst:
        joined.map[h] = 0;
        break;
    }
  }
  if (choice.heads != HeadMap::kAlongTime) return joined;
  // [B, Hkv, S·group, D], every row group times in a row, viewed as [B, H, S, D].
  for (Numbers* values : {&joined.k, &joined.v}) {
    Numbers wide(B * H_ * joined.S * D_);
    for (int64_t r = 0; r < B * H_ * joined.S; ++r) {
      std::copy_n(&(*values)[r / group * D_], D_, &wide[r * D_]);
    }
    *values = std::move(wide);
  }
  joined.heads = H_;
  std::iota(joined.map.begin(), joined.map.end(), 0);
  return joined;
}

AttentionReplay::Shared AttentionReplay::Scores(const AttentionRecipe& recipe) {
  return Recall<Numbers>(&Rows().scores, UpTo(Stage::kScores, recipe), [&] {
    const auto [B, T, P] = SizesOf(recipe);
    const std::span<const int64_t> positions = PositionsOf(recipe);
    const auto R = std::ssize(positions);
    const auto heads = Rotated(recipe);
    const auto joined = WithPast(recipe);
    const int64_t S = joined->S;
    Numbers scores(B * H_ * R * S);
    AddAlibi(recipe, S, &scores);
    work_ += static_cast<double>(B * H_ * R * S * D_);
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H_; ++h) {
        const double* k = &joined->k[(b * joined->heads + joined->map[h]) * S * D_];
        for (int64_t r = 0; r < R; ++r) {
          const double* q = &heads->q[((b * H_ + h) * T + positions[r]) * D_];
          double* row = &scores[((b * H_ + h) * R + r) * S];
          for (int64_t d = 0; d < D_; ++d) {
            const double factor = recipe.score.scale * q[d];
            const double* from = &k[d * S];
            for (int64_t j = 0; j < S; ++j) row[j] += factor * from[j];
          }
        }
      }
    }
    Perturb(Draws::kScores, &scores);
    return scores;
  });
}

// scores [B, H, R, S] -= slope of the head times the distance of the key.
void AttentionReplay::AddAlibi(const AttentionRecipe& recipe, int64_t S, Numbers* scores) const {
  const AlibiChoice choice = recipe.score.alibi;
  if (choice == AlibiChoice::kNone) return;
  const int64_t T = SizesOf(recipe).T;
  const std::span<const int64_t> positions = PositionsOf(recipe);
  const auto R = std::ssize(positions);
  std::vector<double> slopes = AlibiSlopes(H_, choice == AlibiChoice::kFromZero ? -1 : 0);
  if (choice == AlibiChoice::kOneSeries) {
    for (int64_t h = 0; h < H_; ++h) {
      slopes[h] = std::pow(2, -8 * static_cast<double>(h + 1) / static_cast<double>(H_));
    }
  }
  if (choice == AlibiChoice::kOddsFirst) slopes = AlibiSlopesOddsFirst(H_);
  const double factor = (choice == AlibiChoice::kBackwards ? -1 : 1) *
                        (recipe.score.alibi_scaled ? recipe.score.scale : 1);
  for (size_t at = 0; at < scores->size(); ++at) {
    const auto r = static_cast<int64_t>(at) / S, j = static_cast<int64_t>(at) % S;
    const int64_t i = choice == AlibiChoice::kByPosition ? 0 : S - T + positions[r % R];
    (*scores)[at] += factor * slopes[r / R % H_] * static_cast<double>(j - i);
  }
}

// ------------------------------------------------------------------ mask and softmax

// The batch row whose padding hides keys of row b and head h.
int64_t AttentionReplay::MaskRowOf(const AttentionRecipe& recipe, int64_t b, int64_t h) const {
  switch (recipe.mask.row) {
    case MaskRow::kOwn:
      return b;
    case MaskRow::kHeadsLead:
      return (h * case_.B + b) / H_;
    case MaskRow::kBatchLeads:
      return (b * H_ + h) % case_.B;
    case MaskRow::kFirst:
      return 0;
  }
  return b;
}

// Whether key j of S is no padding; fewer keys than were given are the last ones.
bool AttentionReplay::IsToken(int64_t b, int64_t j, int64_t S) const {
  const int64_t given = case_.S(), key = j + std::max(given - S, int64_t{0});
  return context_.attention_mask[b * given + std::min(key, given - 1)] != 0;
}

// The query of row [B, H, T].
AttentionReplay::Query AttentionReplay::QueryOf(const AttentionRecipe& recipe, int64_t row) const {
  const int64_t T = SizesOf(recipe).T, i = row % T;
  return {MaskRowOf(recipe, row / (H_ * T), row / T % H_), i, KeysBefore(recipe) + i};
}

// Whether it may see key j of S.
bool AttentionReplay::Visible(const AttentionRecipe& recipe, const Query& query, int64_t j,
                              int64_t S) const {
  const MaskChoice& mask = recipe.mask;
  const auto [b, i, at] = query;
  if (context_.Packed() && mask.documents && !recipe.project.batch_as_time) {
    const int64_t* ids = &context_.document_ids[b * case_.T];
    if (ids[i] != ids[j]) return false;
  }
  if (HidesPadding(mask) && context_.Padded() && !recipe.project.batch_as_time) {
    if (IsToken(b, j, S) == (mask.pads == PadChoice::kReversed)) return false;
  }
  const bool near = mask.window <= 0 || at - j < mask.window;
  switch (mask.shape) {
    case MaskShape::kCausal:
      return j <= at && near;
    case MaskShape::kNone:
      return j < S;
    case MaskShape::kStrictlyUpper:
      return j > at;
    case MaskShape::kUpper:
      return j >= at;
    case MaskShape::kNoDiagonal:
      return j < at && near;
    case MaskShape::kOneMore:
      return j <= at + 1 && near;
    case MaskShape::kTopLeft:
      return j <= i;
  }
  return false;
}

// How many of the keys come before the chunk's own.
int64_t AttentionReplay::KeysBefore(const AttentionRecipe& recipe) const {
  const int64_t P = SizesOf(recipe).P;
  switch (recipe.cache.cache) {
    case CacheChoice::kNotRead:
      return 0;
    case CacheChoice::kHole:
      return P + 1;
    case CacheChoice::kEndSkipped:
      return std::max(P - recipe.cache.skipped, int64_t{0});
    default:
      break;
  }
  if (!IsRing(recipe)) return P;
  return static_cast<int64_t>(RingRows(recipe).size()) - SizesOf(recipe).T;
}

AttentionReplay::Numbers AttentionReplay::MaskedScores(const AttentionRecipe& recipe) {
  const auto [B, T, P] = SizesOf(recipe);
  const int64_t S = WithPast(recipe)->S;
  const MaskChoice& mask = recipe.mask;
  Numbers scores = *Scores(recipe);
  for (int64_t r = 0; r < std::ssize(scores) / S; ++r) {
    double* row = &scores[r * S];
    const int64_t full = FullRow(recipe, r);
    const Query query = QueryOf(recipe, full);
    for (int64_t j = 0; j < S; ++j) {
      const bool visible = Visible(recipe, query, j, S);
      if (mask.pads == PadChoice::kRaised) {
        row[j] += IsToken(full / (H_ * T), j, S);
      }
      switch (mask.hidden) {
        case HiddenAs::kLeftOut:
          if (!visible) row[j] = -kInfinity;
          break;
        case HiddenAs::kZeroedAfter:
          break;
        case HiddenAs::kVisibleRaised:
          row[j] += visible;
          break;
        case HiddenAs::kHiddenRaised:
          row[j] += !visible;
          break;
        case HiddenAs::kRaisedUnscaled:
          row[j] += visible ? recipe.score.scale : 0;
          break;
        case HiddenAs::kFilled:
          if (!visible) row[j] = mask.fill;
          break;
        case HiddenAs::kLowered:
          if (!visible) row[j] += mask.fill;
          break;
        case HiddenAs::kCapped:
          row[j] = visible ? mask.fill * std::tanh(row[j] / mask.fill) : -mask.fill;
          break;
        case HiddenAs::kSwamped:
          row[j] = visible ? 0 : -kInfinity;
          break;
        case HiddenAs::kOverflowed:
          row[j] = visible ? kNan : -kInfinity;
          break;
      }
    }
  }
  return scores;
}

AttentionReplay::Shared AttentionReplay::Pattern(const AttentionRecipe& recipe) {
  return Recall<Numbers>(&Rows().pattern, UpTo(Stage::kPattern, recipe), [&] {
    const int64_t B = SizesOf(recipe).B, T = SizesOf(recipe).T;
    const auto R = std::ssize(PositionsOf(recipe));
    const int64_t S = WithPast(recipe)->S;
    Numbers pattern = MaskedScores(recipe);
    work_ += 20 * static_cast<double>(pattern.size());
    const EmptyRow empty = recipe.mask.empty;
    // The entries of one row that are left out, before softmax overwrites the marks.
    std::vector<bool> left_out(pattern.size());
    for (size_t i = 0; i < pattern.size(); ++i) left_out[i] = pattern[i] == -kInfinity;
    const Shared raw = Scores(recipe);
    const auto settle = [&](int64_t first, int64_t n, int64_t stride) {
      for (int64_t i = 0; i < n; ++i) {
        if (!left_out[first + i * stride]) return;
      }
      for (int64_t i = 0; i < n; ++i) {
        double& value = pattern[first + i * stride];
        if (empty == EmptyRow::kZero) value = 0;
        if (empty == EmptyRow::kUniform) value = 1 / static_cast<double>(n);
        if (empty == EmptyRow::kUnmasked) value = (*raw)[first + i * stride];
        if (empty == EmptyRow::kHiddenOnce && n == S && stride == 1) {
          const int64_t row = FullRow(recipe, first / S);
          const bool later = i > KeysBefore(recipe) + row % T;
          value = later != !IsToken(row / (H_ * T), i, S) ? 0 : -kInfinity;
        }
      }
      if (empty == EmptyRow::kUnmasked || empty == EmptyRow::kHiddenOnce) {
        Softmax(&pattern[first], n, stride);
      }
    };
    ApplySoftmax(recipe.softmax, {B, H_, R, S}, settle, &pattern);
    if (recipe.mask.hidden == HiddenAs::kZeroedAfter) {
      for (int64_t r = 0; r < B * H_ * R; ++r) {
        const Query query = QueryOf(recipe, FullRow(recipe, r));
        for (int64_t j = 0; j < S; ++j) {
          if (!Visible(recipe, query, j, S)) pattern[r * S + j] = 0;
        }
      }
    }
    Perturb(Draws::kPattern, &pattern);
    return pattern;
  });
}

AttentionReplay::Numbers AttentionReplay::ValuesByHead(const AttentionRecipe& recipe) {
  const auto joined = WithPast(recipe);
  const int64_t each = joined->S * D_;
  Numbers values(case_.B * H_ * each);
  for (int64_t r = 0; r < case_.B * H_; ++r) {
    const int64_t from = r / H_ * joined->heads + joined->map[r % H_];
    std::copy_n(&joined->v[from * each], each, &values[r * each]);
  }
  return values;
}

void AttentionReplay::AssumePattern(const AttentionRecipe& recipe, Numbers pattern) {
  all_.pattern.numbers += pattern.size();
  all_.pattern.kept.emplace_front(UpTo(Stage::kPattern, recipe),
                                  std::make_shared<const Numbers>(std::move(pattern)));
}

// ------------------------------------------------------------------ output

AttentionReplay::Shared AttentionReplay::Z(const AttentionRecipe& recipe) {
  return Recall<Numbers>(&Rows().z, UpTo(Stage::kZ, recipe), [&] {
    const int64_t B = SizesOf(recipe).B, R = std::ssize(PositionsOf(recipe));
    const auto joined = WithPast(recipe);
    const Shared pattern = Pattern(recipe);
    const int64_t S = joined->S;
    Numbers z(B * H_ * R * D_);
    work_ += static_cast<double>(B * H_ * R * S * D_);
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H_; ++h) {
        const double* v = &joined->v[(b * joined->heads + joined->map[h]) * S * D_];
        const double* weights = &(*pattern)[(b * H_ + h) * R * S];
        for (int64_t i = 0; i < R; ++i) {
          double* row = &z[((b * H_ + h) * R + i) * D_];
          // Turned weights are those of as many queries as there are.
          for (int64_t j = 0; j < (recipe.combine.transposed ? std::min(S, R) : S); ++j) {
            const double weight =
                recipe.combine.transposed ? weights[j * S + i] : weights[i * S + j];
            if (weight == 0) continue;
            for (int64_t d = 0; d < D_; ++d) row[d] += weight * v[j * D_ + d];
          }
        }
      }
    }
    Perturb(Draws::kZ, &z);
    return z;
  });
}

AttentionReplay::Shared AttentionReplay::Merged(const AttentionRecipe& recipe) {
  return Recall<Numbers>(&Rows().merged, UpTo(Stage::kMerged, recipe), [&] {
    const int64_t B = SizesOf(recipe).B, R = std::ssize(PositionsOf(recipe));
    const Shared z = Z(recipe);
    const MergeKind kind = recipe.combine.merge;
    Numbers merged(z->size());
    if (kind == MergeKind::kUntransposed) {
      const int64_t width = H_ * D_;
      for (int64_t r = 0; r < B * R; ++r) {
        const int64_t row = recipe.project.batch_as_time ? r % R * B + r / R : r;
        std::copy_n(&(*z)[r * width], width, &merged[row * width]);
      }
      return merged;
    }
    for (int64_t n = 0; n < B * H_; ++n) {
      int64_t b = n / H_, h = n % H_;
      // Heads were stacked one way and are taken apart the other.
      if (kind == MergeKind::kHeadsLead) {
        const int64_t stacked = h * B + b;
        b = stacked / H_;
        h = stacked % H_;
      } else if (kind == MergeKind::kBatchLeads) {
        h = n / B;
        b = n % B;
      }
      for (int64_t r = 0; r < R; ++r) {
        const int64_t row = recipe.project.batch_as_time ? r * B + b : b * R + r;
        std::copy_n(&(*z)[(n * R + r) * D_], D_, &merged[(row * H_ + h) * D_]);
      }
    }
    return merged;
  });
}

AttentionReplay::Shared AttentionReplay::Output(const AttentionRecipe& recipe) {
  return Recall<Numbers>(&Rows().output, recipe, [&] {
    const Shared merged = Merged(recipe);
    const int64_t C = case_.proj.out, width = case_.proj.in, rows = std::ssize(*merged) / width;
    std::span<const double> weight = out_weight_;
    Numbers turned;
    if (recipe.project.transposed & kOProj) {
      turned.assign(weight.begin(), weight.end());
      TransposeSquare(C, turned.data());
      weight = turned;
    }
    Numbers y(rows * C);
    if ((recipe.project.without_bias & kOProj) == 0) {
      for (int64_t r = 0; r < rows; ++r) {
        std::ranges::copy(case_.proj.bias, y.begin() + r * C);
      }
    }
    AddProduct(*merged, weight, rows, C, width, y);
    for (int64_t r = 0; r < rows && recipe.combine.plus_input; ++r) {
      const double* x = &x_[FullRow(recipe, r) * C];
      for (int64_t c = 0; c < C; ++c) y[r * C + c] += x[c];
    }
    work_ += static_cast<double>(rows * C * width);
    Perturb(Draws::kOutput, &y);
    return y;
  });
}

}  // namespace heed
