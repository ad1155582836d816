// Which recipe reproduces a dump: the right one under every convention that was not stated, then
// each fault alone, then fitted ones, then pairs and triples.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "verify/diagnose/attention_conventions.h"
#include "verify/diagnose/attention_dropout.h"
#include "verify/diagnose/attention_dump.h"
#include "verify/diagnose/attention_faults.h"
#include "verify/diagnose/search.h"

namespace heed {

struct AttentionHypothesis {
  std::vector<size_t> faults;   // indices into AttentionFaultTable(), ascending
  std::vector<Change> changes;  // one for each, as they were applied
  std::string detail;
  size_t convention = 0;
  AttentionRecipe recipe;
  // The largest of all their tensors; of what seems hopeless at a few rows, that of the first
  // tensor to depart at these.
  double residual = 0;
  int64_t reproduced = 0;  // of their tensors, from the front
  bool fitted = false;     // has a number that was fitted
};

// Dropout on top of `base`: a right formula, or one fault.
struct AttentionDropout {
  AttentionHypothesis base;
  SolvedDropout solved;
  Explanation explanation;  // with the faults of both
};

// Its faults' identifiers, sorted.
std::vector<std::string> NamesOf(const AttentionHypothesis& hypothesis);

class AttentionSearch {
 public:
  // `dump` must outlive this object.
  explicit AttentionSearch(const AttentionDump& dump);

  // The right formula under every convention first; what explains theirs behind it, if anything
  // does.
  std::vector<AttentionHypothesis> Run();

  // What Run() found instead, when dropout explains theirs: all that do about as well.
  const std::vector<AttentionDropout>& dropouts() const { return dropouts_; }

  // Every way to make these faults, by identifier, under the first convention; a fitted number
  // takes each value of its grid. Empty for a fault that cannot be replayed.
  std::vector<AttentionRecipe> RecipesOf(const std::vector<std::string>& faults) const;

  // What rounding may do to their tensors when they are made by `recipe`.
  NoiseFloor FloorOf(const AttentionRecipe& recipe);
  double ResidualOf(const AttentionRecipe& recipe, const TheirTensor& tensor);
  // The largest residual once ours are rounded into their type as well.
  double RoundedResidualOf(const AttentionRecipe& recipe);
  const std::vector<AttentionConvention>& conventions() const { return conventions_; }
  AttentionReplay& replay() { return replay_; }

 private:
  // What a few rows, and the tensors before the scores, say of a recipe.
  struct Glance {
    double least = 0;     // a bound from below on its residual
    double residual = 0;  // of these rows
    int64_t reproduced = 0;
  };
  double ResidualOf(const AttentionRecipe& recipe);
  void ChooseRows(const AttentionRecipe& right);
  Glance GlanceAt(const AttentionRecipe& recipe, bool to_the_end);
  double ResidualBehind(const Glance& glance, const AttentionRecipe& recipe);
  void Judge(AttentionHypothesis* hypothesis);
  double Unit() const;
  double MostFloor() const;
  int64_t EqualRowsFromFirst();
  bool SeemsToHoldInput();
  void AddInputConvention();
  bool Explains(const AttentionHypothesis& hypothesis);
  bool WithinBudget() const;
  bool ReproducesTo(Stage stage, const AttentionRecipe& recipe, double floor);
  bool NameDropout(AttentionDropout* dropout) const;
  std::vector<AttentionDropout> Solved(const std::vector<AttentionHypothesis>& bases, double floor,
                                       DropoutEffort effort);
  std::vector<AttentionHypothesis> LikeliestForDropout(
      const std::vector<AttentionHypothesis>& bases, double floor);
  bool FindDropout(const std::vector<AttentionHypothesis>& bases, double floor);
  std::vector<AttentionHypothesis> Singles(size_t convention);
  std::vector<AttentionHypothesis> Fitted(const std::vector<AttentionHypothesis>& bases);
  AttentionHypothesis Fit(const AttentionHypothesis& base, size_t fault, const FittedFault& fit);
  std::vector<AttentionHypothesis> Extended(const std::vector<AttentionHypothesis>& bases,
                                            const std::vector<AttentionHypothesis>& singles);
  std::vector<AttentionHypothesis> Promising(std::vector<AttentionHypothesis> all, size_t count);

  const AttentionDump& dump_;
  AttentionReplay replay_;
  std::deque<AttentionReplay> rough_;  // with errors of rounding
  std::vector<AttentionConvention> conventions_;
  std::vector<AttentionDropout> dropouts_;
  std::vector<std::vector<double>> looked_at_;  // of their tensors, the rows that a glance compares
  std::vector<double> sizes_;                   // Euclidean norms of their tensors
  std::vector<std::pair<AttentionReplay::Shared, double>> compared_;  // ours last time, and how far
};

}  // namespace heed
