// Causal self-attention computed in double by any recipe, on the numbers of one case.
//
// Letters as in inspect/attention_trace.h.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "inspect/attention_trace.h"
#include "verify/diagnose/attention_context.h"
#include "verify/diagnose/attention_recipe.h"

namespace heed {

// In the order of the computation; shapes as TraceAttention has them, scores before the mask.
enum class Stage : uint8_t { kQ, kK, kV, kQRot, kKRot, kScores, kPattern, kZ, kMerged, kY };
inline constexpr int kStageCount = 10;
std::string_view NameOf(Stage stage);

// What nobody reads: rows of padding behind the projections, and their keys' scores, become 0. NaN
// stays, for it spreads.
void BlankPadding(const AttentionCase& attention, const AttentionContext& context, Stage stage,
                  std::vector<double>* values);

// The rows at these positions of a tensor [.., T, width].
std::vector<double> RowsAt(std::span<const int64_t> positions, int64_t T, int64_t width,
                           std::span<const double> values);

// Random relative errors of every input and every result, as a type of this unit roundoff leaves.
struct Perturbation {
  double unit = 0;
  uint64_t seed = 0;
};

class AttentionReplay {
 public:
  using Numbers = std::vector<double>;
  using Shared = std::shared_ptr<const Numbers>;

  // Both must outlive this object; settings' choices are ignored, a recipe states them.
  explicit AttentionReplay(const AttentionCase& attention,
                           const AttentionContext& context = kNoContext,
                           Perturbation perturbation = {});

  // The tensor by this recipe, behind BlankPadding. Stages whose choices
  // did not change are not computed again.
  Shared Tensor(const AttentionRecipe& recipe, Stage stage);
  // The R rows that Glance() computes: positions of the chunk.
  void LookAt(std::vector<int64_t> positions);
  // A tensor from the scores on with these rows alone, [B, H, R, ..] or [B, R, C]; nullptr for
  // earlier ones, and where the recipe makes a row from others.
  Shared Glance(const AttentionRecipe& recipe, Stage stage);
  // What the query heads read: [B, H, S, D]. Not along the batch axis.
  Numbers ValuesByHead(const AttentionRecipe& recipe);
  // Later results of this recipe follow from this pattern. For a replay that has computed nothing.
  void AssumePattern(const AttentionRecipe& recipe, Numbers pattern);
  // The scores with what the mask makes of them, -inf where it leaves a key out.
  Numbers MaskedScores(const AttentionRecipe& recipe);
  // Multiply-adds done so far.
  double work() const { return work_; }

 private:
  struct Heads {
    Numbers q, k, v;
  };
  struct Joined {
    Numbers k, v;  // [B, heads, D, S] and [B, heads, S, D]
    int64_t heads = 0, S = 0;
    std::vector<int64_t> map;  // which of them a query head reads
  };
  // Results of one stage with the recipes they were made by, newest first.
  template <class T>
  struct Memo {
    std::deque<std::pair<AttentionRecipe, std::shared_ptr<const T>>> kept;
    size_t most = 8, numbers = 0;
  };
  struct Sizes {
    int64_t B, T, P;
  };
  // A row of scores to the mask: the batch row whose padding counts, the place in the chunk, and
  // among all keys.
  struct Query {
    int64_t b, i, at;
  };
  // What is made row by row.
  struct ByRow {
    Memo<Numbers> scores, pattern, z, merged, output;
  };
  // The part of the joined weight [rows, C] that makes one slot.
  struct SlotRows {
    std::span<const double> weight;  // where it lies, or `moved`
    Numbers moved, bias;
  };

  static size_t CountOf(const Numbers& values) { return values.size(); }
  static size_t CountOf(const Heads& x) { return x.q.size() + x.k.size() + x.v.size(); }
  static size_t CountOf(const Joined& x) { return x.k.size() + x.v.size(); }
  template <class T>
  std::shared_ptr<const T> Recall(Memo<T>* memo, const AttentionRecipe& key,
                                  const std::function<T()>& compute);
  Sizes SizesOf(const AttentionRecipe& recipe) const;
  Shared Made(const AttentionRecipe& recipe, Stage stage);
  Shared Blanked(Stage stage, Shared made) const;
  std::span<const int64_t> PositionsOf(const AttentionRecipe& recipe) const;
  int64_t FullRow(const AttentionRecipe& recipe, int64_t row) const;
  ByRow& Rows() { return glancing_ ? few_ : all_; }
  Query QueryOf(const AttentionRecipe& recipe, int64_t row) const;
  bool Visible(const AttentionRecipe& recipe, const Query& query, int64_t j, int64_t S) const;
  int64_t MaskRowOf(const AttentionRecipe& recipe, int64_t b, int64_t h) const;
  int64_t PositionOf(const RotateChoice& choice, int64_t b, int64_t t, int64_t P) const;
  int64_t RingCapacity() const;
  bool IsRing(const AttentionRecipe& recipe) const;
  std::vector<int64_t> RingRows(const AttentionRecipe& recipe) const;
  bool IsToken(int64_t b, int64_t j, int64_t S) const;
  void NormaliseHeads(const AttentionRecipe& recipe, const HeadGain& gain, Numbers* x) const;
  void AddAlibi(const AttentionRecipe& recipe, int64_t S, Numbers* scores) const;

  int64_t KeysBefore(const AttentionRecipe& recipe) const;

  std::shared_ptr<const Heads> Projected(const AttentionRecipe& recipe);
  std::shared_ptr<const Heads> Rotated(const AttentionRecipe& recipe);
  std::shared_ptr<const Joined> WithPast(const AttentionRecipe& recipe);
  Joined Join(const AttentionRecipe& recipe);
  Shared Scores(const AttentionRecipe& recipe);
  Shared Pattern(const AttentionRecipe& recipe);
  Shared Z(const AttentionRecipe& recipe);
  Shared Merged(const AttentionRecipe& recipe);
  Shared Output(const AttentionRecipe& recipe);

  SlotRows SlotRowsOf(const ProjectChoice& choice, Slot slot) const;
  Numbers ProjectSlot(const ProjectChoice& choice, Slot slot, int64_t heads);
  Shared RecallSlot(const ProjectChoice& choice, Slot slot, int64_t heads);
  void Turn(const AttentionRecipe& recipe, int64_t heads, double sense, bool halves, bool keys,
            Numbers* x);
  Numbers PastOf(const AttentionRecipe& recipe, bool keys);
  // What errors are drawn for: the same ones for every recipe, in whatever order.
  enum class Draws : uint32_t {
    kX,
    kWeight,
    kBias,
    kOutWeight,
    kPastK,
    kPastV,
    kQ,
    kK,
    kV,
    kNormQ,
    kNormK,
    kTurned,
    kTurnedK,
    kScores,
    kPattern,
    kZ,
    kOutput,
  };
  std::span<const double> Perturbed(const Numbers& values, Draws draws);
  void Perturb(Draws draws, Numbers* values) const;

  const AttentionCase& case_;
  const AttentionContext& context_;
  const int64_t H_, Hkv_, D_;
  Perturbation perturbation_;
  double work_ = 0;
  std::deque<Numbers> perturbed_;
  std::span<const double> x_, weight_, bias_, out_weight_, past_k_, past_v_;
  Heads given_;
  // As many as there are faults of these stages, for pairs return to each.
  static constexpr size_t kMany = 96;
  Memo<Numbers> slots_{.most = kMany};
  Memo<Heads> projected_{.most = kMany}, rotated_{.most = kMany};
  Memo<Joined> joined_{.most = kMany};
  ByRow all_, few_;
  std::vector<int64_t> every_row_, looked_at_;
  bool glancing_ = false;  // rows are those looked at
};

}  // namespace heed
