#include "verify/diagnose/attention_dropout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "verify/diagnose/lattice.h"
#include "verify/diagnose/search.h"

namespace heed {
namespace {

using Numbers = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMostDropped = 0.8;

// Of what is kept, so that it is no rounding.
double LeastGain(double floor) { return 1 + std::max(0.005, 4 * floor); }

double Square(std::span<const double> values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

// `ours` with what is 0 in theirs dropped and the rest times one gain, which is returned; 0 when
// nothing was dropped or kept, or they are of different sizes.
double DropAlike(const Numbers& theirs, Numbers* ours) {
  if (theirs.size() != ours->size()) return 0;
  double cross = 0, size = 0;
  bool dropped = false;
  for (size_t i = 0; i < theirs.size(); ++i) {
    if (theirs[i] == 0) {
      dropped |= (*ours)[i] != 0;
      (*ours)[i] = 0;
    }
    if (!std::isfinite((*ours)[i]) || !std::isfinite(theirs[i])) continue;
    cross += theirs[i] * (*ours)[i];
    size += (*ours)[i] * (*ours)[i];
  }
  if (!dropped || size == 0) return 0;
  for (double& value : *ours) value *= cross / size;
  return cross / size;
}

// Which of n columns [n, C] sum up to a target [C], by a depth-first search behind a QR
// decomposition that takes the likelier choice first (Schnorr and Euchner 1994, for 0 and 1 alone).
class SubsetSearch {
 public:
  SubsetSearch(Numbers columns, int64_t C)
      : C_(C),
        n_(static_cast<int64_t>(columns.size()) / C),
        rank_(std::min(n_, C)),
        order_(n_),
        basis_(rank_ * C),
        r_(rank_ * n_),
        left_((n_ + 1) * rank_),
        chosen_(n_) {
    std::iota(order_.begin(), order_.end(), 0);
    // The shortest first, so that what is decided first, the last ones, rises above the noise.
    for (int64_t k = 0; k < rank_; ++k) {
      int64_t shortest = k;
      for (int64_t i = k; i < n_; ++i) {
        if (Square(Column(columns, i)) < Square(Column(columns, shortest))) shortest = i;
      }
      Exchange(k, shortest, &columns);
      const double norm = std::sqrt(Square(Column(columns, k)));
      for (int64_t c = 0; c < C && norm > 0; ++c) basis_[k * C + c] = columns[k * C + c] / norm;
      for (int64_t i = k; i < n_; ++i) {
        double& dot = r_[k * n_ + i];
        for (int64_t c = 0; c < C; ++c) dot += basis_[k * C + c] * columns[i * C + c];
        for (int64_t c = 0; c < C; ++c) columns[i * C + c] -= dot * basis_[k * C + c];
      }
    }
  }

  // Whether the last search tried all that it had to.
  bool Finished() const { return visits_ <= kMostVisits; }

  // The nearest subset, as marks of the columns; nothing when none lies within `radius`.
  std::optional<std::vector<bool>> Nearest(Numbers target, double radius) {
    for (int64_t k = 0; k < rank_; ++k) {
      double& dot = left_[n_ * rank_ + k] = 0;
      for (int64_t c = 0; c < C_; ++c) dot += basis_[k * C_ + c] * target[c];
      for (int64_t c = 0; c < C_; ++c) target[c] -= dot * basis_[k * C_ + c];
    }
    best_ = radius * radius;
    found_.clear();
    visits_ = 0;
    Visit(n_ - 1, Square(target));
    if (found_.empty() && n_ > 0) return std::nullopt;
    return found_;
  }

 private:
  static constexpr int64_t kMostVisits = 50000;

  std::span<const double> Column(const Numbers& columns, int64_t i) const {
    return std::span(columns).subspan(i * C_, C_);
  }

  void Exchange(int64_t a, int64_t b, Numbers* columns) {
    if (a == b) return;
    std::swap(order_[a], order_[b]);
    std::swap_ranges(columns->begin() + a * C_, columns->begin() + (a + 1) * C_,
                     columns->begin() + b * C_);
    for (int64_t k = 0; k < a; ++k) std::swap(r_[k * n_ + a], r_[k * n_ + b]);
  }

  // Columns behind `i` are chosen, which left `error`.
  void Visit(int64_t i, double error) {
    if (error >= best_ || ++visits_ > kMostVisits) return;
    if (i < 0) {
      best_ = error;
      found_.assign(n_, false);
      for (int64_t k = 0; k < n_; ++k) found_[order_[k]] = chosen_[k];
      return;
    }
    const double* left = &left_[(i + 1) * rank_];
    // Columns beyond the rank have no equation of their own.
    const bool bound = i < rank_;
    const double kept = bound ? std::pow(left[i] - r_[i * n_ + i], 2) : 0;
    const double lost = bound ? left[i] * left[i] : 0;
    for (const bool keep : {kept <= lost, kept > lost}) {
      chosen_[i] = keep;
      for (int64_t k = 0; k < std::min(i, rank_); ++k) {
        left_[i * rank_ + k] = left[k] - (keep ? r_[k * n_ + i] : 0);
      }
      Visit(i - 1, error + (keep ? kept : lost));
    }
  }

  int64_t C_, n_, rank_;
  std::vector<int64_t> order_;
  Numbers basis_;  // [rank, C]
  Numbers r_;      // [rank, n]
  Numbers left_;   // [n + 1, rank]: what the columns from i on leave of the target
  std::vector<bool> chosen_, found_;
  double best_ = 0;
  int64_t visits_ = 0;
};

// A piece of their last result at one position: what each weight behind it contributes.
struct Piece {
  Numbers columns;            // [n, C]
  Numbers target;             // [C]
  std::vector<bool> kept;     // [n]
  std::vector<bool> weak;     // [n]: the contribution drowns in the noise
  std::vector<int64_t> ends;  // [H]: of each head's columns, where heads are summed up

  int64_t C() const { return static_cast<int64_t>(target.size()); }
  int64_t n() const { return static_cast<int64_t>(columns.size()) / C(); }
  std::span<const double> Column(int64_t i) const {
    return std::span(columns).subspan(i * C(), C());
  }
  // What those that are `marked` make.
  Numbers Sum(const std::vector<bool>& marked) const {
    Numbers sum(C());
    for (int64_t i = 0; i < n(); ++i) {
      for (int64_t c = 0; c < C() && marked[i]; ++c) sum[c] += columns[i * C() + c];
    }
    return sum;
  }
};

class Solver {
 public:
  Solver(const AttentionDump& dump, const AttentionRecipe& recipe, double floor,
         AttentionReplay* replay)
      : dump_(dump),
        case_(dump.attention),
        last_(dump.theirs.back()),
        recipe_(recipe),
        floor_(floor),
        pattern_(*replay->Tensor(recipe, Stage::kPattern)),
        v_(replay->ValuesByHead(recipe)),
        S_(static_cast<int64_t>(v_.size()) /
           (case_.B * case_.settings.n_head * case_.settings.head_dim)) {}

  std::optional<SolvedDropout> Solve(DropoutEffort effort) {
    SolvedDropout found{.residual = kInfinity};
    const bool many = effort == DropoutEffort::kManyWeights;
    if (many && !HasMore(0, 0)) return std::nullopt;
    const std::vector<Row> solved = many ? DecideByDigits(&found) : Decide(&found);
    if (solved.empty() || !(found.residual <= floor_) || !IsLikely(solved, found.gain)) {
      return std::nullopt;
    }
    if (dump_.dropout == 0 && found.gain < LeastGain(floor_)) return std::nullopt;
    found.rows = static_cast<int64_t>(solved.size());
    found.where = found.rows == 1
                      ? "of the weights, solved for row 0"
                      : fmt::format("of the weights, solved for rows 0 to {}", found.rows - 1);
    Weigh(case_.T, &found);
    return found;
  }

  // Of a dropout that digits may decide.
  std::optional<double> Likelihood() const {
    if (!HasMore(0, 0) || !MayBeDecidedByDigits()) return std::nullopt;
    constexpr int64_t kFewRows = 2;
    const std::vector<double> some = {0.1, 0.3, 0.5};
    double best = -kInfinity;
    for (const double p : dump_.dropout > 0 ? std::vector<double>{dump_.dropout} : some) {
      SolvedDropout nothing_yet{.gain = 1 / (1 - p)};
      Weigh(kFewRows, &nothing_yet);
      best = std::max(best, nothing_yet.likelihood);
    }
    if (!std::isfinite(best)) return std::nullopt;
    return best;
  }

 private:
  // Weights beyond the number of equations double the search each.
  static constexpr int64_t kFree = 12, kMostWeights = 64;
  static constexpr int64_t kMostByDigits = 96;
  // Of the floor: right ones lie well within what they might.
  static constexpr double kByDigits = 0.1;

  using Row = std::vector<Piece>;  // of one position

  std::span<const double> WeightsOf(int64_t b, int64_t h, int64_t t) const {
    return std::span(pattern_).subspan(((b * case_.settings.n_head + h) * case_.T + t) * S_, S_);
  }

  // Of one head, or of all that a row of y sums up; 0 where neither ours nor theirs are numbers.
  int64_t CountWeights(int64_t b, int64_t h, int64_t t) const {
    const bool whole = last_.stage == Stage::kY;
    int64_t count = 0;
    for (int64_t head = whole ? 0 : h; head <= (whole ? case_.settings.n_head - 1 : h); ++head) {
      for (const double weight : WeightsOf(b, head, t)) {
        if (std::isnan(weight) && !std::isfinite(Square(TargetOf(b, h, t)))) return 0;
        count += weight != 0;
      }
    }
    return count;
  }

  // Whether row t has more weights than equations and `free` ones.
  bool HasMore(int64_t t, int64_t free) const {
    const int64_t C = last_.stage == Stage::kY ? case_.proj.out : case_.settings.head_dim;
    for (int64_t b = 0; b < case_.B; ++b) {
      for (int64_t h = 0; h < PiecesOfRow(); ++h) {
        if (CountWeights(b, h, t) > std::min(C + free, kMostWeights)) return true;
      }
    }
    return false;
  }

  // Digits decide each head alone where y can be taken apart into them.
  bool MayBeDecidedByDigits() const {
    const bool whole = last_.stage == Stage::kY && case_.proj.out < case_.proj.in;
    const int64_t C = whole ? case_.proj.out : case_.settings.head_dim;
    const int64_t n =
        whole ? CountWeights(0, 0, 0)
              : std::ranges::count_if(WeightsOf(0, 0, 0), [](double w) { return w != 0; });
    return n <= kMostByDigits && IsDecidable(n, C, kByDigits * floor_);
  }

  // The size of a piece's target, in the mean of all rows.
  double MeanSize() const {
    double size = 0, pieces = 0;
    for (int64_t b = 0; b < case_.B; ++b) {
      for (int64_t h = 0; h < PiecesOfRow(); ++h) {
        for (int64_t t = 0; t < case_.T; ++t, ++pieces) {
          const double square = Square(TargetOf(b, h, t));
          size += std::isfinite(square) ? square : 0;
        }
      }
    }
    return std::sqrt(size / pieces);
  }

  // Reads row t, behind those before it, and what there is to search in it: few recipes need more
  // than one. False where it cannot be solved.
  bool Read(size_t t) {
    if (t < rows_.size()) return true;
    if (static_cast<int64_t>(t) >= case_.T) return false;
    if (HasMore(static_cast<int64_t>(t), kFree)) return false;
    Row row = PiecesAt(static_cast<int64_t>(t));
    searches_.emplace_back();
    for (Piece& piece : row) {
      // What drowns in the noise counts as kept.
      Numbers strong;
      for (int64_t i = 0; i < piece.n(); ++i) {
        const std::span<const double> column = piece.Column(i);
        piece.weak.push_back(std::sqrt(Square(column)) < 0.03 * floor_ * mean_);
        if (!piece.weak.back()) strong.insert(strong.end(), column.begin(), column.end());
      }
      searches_.back().emplace_back(std::move(strong), piece.C());
    }
    rows_.push_back(std::move(row));
    return true;
  }

  double DroppedAt(double gain) const { return dump_.dropout > 0 ? dump_.dropout : 1 - 1 / gain; }

  std::vector<double> Gains() const {
    const double p = dump_.dropout;
    if (p > 0) return {1 / (1 - p), 1, 1 / p};
    std::vector<double> gains;
    for (double dropped = 0.02; dropped <= kMostDropped; dropped += 0.02) {
      gains.push_back(1 / (1 - dropped));
    }
    return gains;
  }

  // Of position t: one piece a row of y, or one a head where the heads lie side by side. Those that
  // are not a number in theirs and ours tell nothing.
  std::vector<Piece> PiecesAt(int64_t t) const {
    std::vector<Piece> pieces;
    for (int64_t b = 0; b < case_.B; ++b) {
      for (int64_t h = 0; h < PiecesOfRow(); ++h) {
        Piece piece = PieceOf(b, h, t);
        const auto is_number = [](double x) { return std::isfinite(x); };
        const bool theirs = std::ranges::all_of(piece.target, is_number);
        const bool ours = std::ranges::all_of(piece.columns, is_number);
        if (theirs || ours) pieces.push_back(std::move(piece));
      }
    }
    return pieces;
  }

  void AddHead(int64_t b, int64_t h, int64_t t, Piece* piece) const {
    const int64_t H = case_.settings.n_head, D = case_.settings.head_dim, C = piece->C();
    const std::span<const double> weights = WeightsOf(b, h, t);
    for (int64_t j = 0; j < S_; ++j) {
      const double weight = weights[j];
      if (weight == 0) continue;
      const double* v = &v_[((b * H + h) * S_ + j) * D];
      for (int64_t c = 0; c < C; ++c) {
        const double value =
            last_.stage != Stage::kY
                ? v[c]
                : std::inner_product(v, v + D, &case_.proj.weight[(c * H + h) * D], 0.0);
        piece->columns.push_back(weight * value);
      }
    }
  }

  int64_t PiecesOfRow() const { return last_.stage == Stage::kY ? 1 : case_.settings.n_head; }

  // Of one head, or of the row of y.
  Numbers TargetOf(int64_t b, int64_t h, int64_t t) const {
    const int64_t H = case_.settings.n_head, D = case_.settings.head_dim, T = case_.T;
    if (last_.stage != Stage::kY) {
      const int64_t row = last_.stage == Stage::kZ ? (b * H + h) * T + t : (b * T + t) * H + h;
      const auto first = last_.values.begin() + row * D;
      return {first, first + D};
    }
    const int64_t C = case_.proj.out;
    const bool bias = (recipe_.project.without_bias & kOProj) == 0;
    Numbers target(C);
    for (int64_t c = 0; c < C; ++c) {
      const int64_t at = (b * T + t) * C + c;
      target[c] = last_.values[at] - (bias ? case_.proj.bias[c] : 0);
      if (recipe_.combine.plus_input) target[c] -= case_.x[at];
    }
    return target;
  }

  Piece PieceOf(int64_t b, int64_t h, int64_t t) const {
    Piece piece{{}, TargetOf(b, h, t), {}, {}, {}};
    if (last_.stage != Stage::kY) {
      AddHead(b, h, t, &piece);
      return piece;
    }
    for (int64_t head = 0; head < case_.settings.n_head; ++head) {
      AddHead(b, head, t, &piece);
      piece.ends.push_back(piece.n());
    }
    return piece;
  }

  // Whether nothing of this kind can have made a row that was not solved: it has as many equations
  // as weights, and all was tried.
  bool IsRefutedBy(size_t t) const {
    for (size_t i = 0; i < rows_[t].size(); ++i) {
      const Piece& piece = rows_[t][i];
      if (piece.n() > piece.C() || !searches_[t][i].Finished()) return false;
    }
    return true;
  }

  // The first rows with the weights that were kept in them, as many as can be solved for one gain.
  std::vector<Row> Decide(SolvedDropout* found) {
    mean_ = MeanSize();
    std::vector<Row> best;
    // What is not stated is known to the next gain of the list, until a row was solved.
    const double unsure = dump_.dropout > 0 ? floor_ : floor_ + 0.02;
    for (double gain : Gains()) {
      std::vector<Row> solved;
      double residual = kInfinity;
      bool refuted = false;
      for (size_t t = 0; Read(t); ++t) {
        Row row = rows_[t];
        const double near = 2 * (std::isfinite(residual) ? floor_ : unsure);
        bool any = true;
        for (size_t i = 0; i < row.size() && any; ++i) {
          any = DecidePiece(gain, near, &searches_[t][i], &row[i]);
        }
        if (!any) {
          refuted = IsRefutedBy(t);
          break;
        }
        solved.push_back(std::move(row));
        double fitted = gain;
        const double with_row = Fit(solved, &fitted);
        // Rows of which nothing is left, or nothing can be told, say nothing of the gain.
        if (with_row == kInfinity) continue;
        if (!(with_row <= floor_)) {
          solved.pop_back();
          break;
        }
        residual = with_row;
        gain = fitted;
      }
      if (refuted || !std::isfinite(residual) || solved.size() < best.size() ||
          (solved.size() == best.size() && residual >= found->residual)) {
        continue;
      }
      found->residual = residual;
      found->gain = gain;
      best = std::move(solved);
    }
    return best;
  }

  // A piece of position 0, whose weights are more than equations: the digits of its numbers decide
  // them. It takes its time, and leaves nothing to chance: one is enough.
  std::vector<Row> DecideByDigits(SolvedDropout* found) const {
    Row row = PiecesAt(0);
    const auto piece =
        std::ranges::find_if(row, [](const Piece& p) { return p.n() > 0 && Square(p.target) > 0; });
    if (piece == row.end() || !DecideByDigits(UnmixingOf(), &*piece)) return {};
    std::vector<Row> solved = {{std::move(*piece)}};
    found->residual = Fit(solved, &found->gain);
    return solved;
  }

  // What takes a row of y apart into its heads, [H·D, C]; empty where y has fewer channels.
  struct Unmixing {
    Numbers inverse;
    std::vector<double> size;  // [H]: root of the sum of its squares
  };

  // The inverse of o_proj [C, H·D] from the left, by Gram-Schmidt.
  Unmixing UnmixingOf() const {
    const int64_t C = case_.proj.out, H = case_.settings.n_head, n = case_.proj.in;
    if (last_.stage != Stage::kY || C < n) return {};
    Numbers turned(n * C), r(n * n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < C; ++c) turned[i * C + c] = case_.proj.weight[c * n + i];
      const std::span<double> column = std::span(turned).subspan(i * C, C);
      for (int64_t j = 0; j <= i; ++j) {
        const std::span<const double> before = std::span(turned).subspan(j * C, C);
        r[j * n + i] = j < i ? std::inner_product(before.begin(), before.end(), column.begin(), 0.0)
                             : std::sqrt(Square(column));
        for (int64_t c = 0; c < C; ++c) {
          column[c] = j < i ? column[c] - r[j * n + i] * before[c] : column[c] / r[i * n + i];
        }
      }
    }
    Unmixing unmixing{std::move(turned), std::vector<double>(H)};
    for (int64_t i = n; i-- > 0;) {
      double* row = &unmixing.inverse[i * C];
      for (int64_t c = 0; c < C; ++c) {
        for (int64_t j = i + 1; j < n; ++j) row[c] -= r[i * n + j] * unmixing.inverse[j * C + c];
        row[c] /= r[i * n + i];
        unmixing.size[i / (n / H)] += row[c] * row[c];
      }
    }
    for (double& size : unmixing.size) size = std::sqrt(size);
    return unmixing;
  }

  bool DecideByDigits(const Unmixing& unmixing, Piece* piece) const {
    const double tolerance = kByDigits * floor_, size = std::sqrt(Square(piece->target));
    if (!std::isfinite(size)) return false;
    piece->kept.assign(piece->n(), true);
    if (unmixing.inverse.empty()) {
      return DecideShare(piece->columns, piece->target, tolerance, 0, piece);
    }
    const int64_t C = piece->C(), D = case_.settings.head_dim;
    for (int64_t h = 0, first = 0; h < case_.settings.n_head; first = piece->ends[h++]) {
      const auto apart = [&](std::span<const double> from, Numbers* to) {
        for (int64_t d = 0; d < D; ++d) {
          const double* row = &unmixing.inverse[(h * D + d) * C];
          to->push_back(std::inner_product(row, row + C, from.begin(), 0.0));
        }
      };
      Numbers columns, target;
      for (int64_t i = first; i < piece->ends[h]; ++i) apart(piece->Column(i), &columns);
      apart(piece->target, &target);
      // Their noise, as so many equal parts, is as large as the inverse makes it.
      const double noise = tolerance * size * unmixing.size[h] / std::sqrt(static_cast<double>(C));
      const double share = noise / std::sqrt(Square(target));
      if (!DecideShare(columns, target, share, first, piece)) return false;
    }
    return true;
  }

  // Which of the weights from `first` on were kept, by what they make of the target.
  static bool DecideShare(const Numbers& columns, const Numbers& target, double tolerance,
                          int64_t first, Piece* piece) {
    const auto C = static_cast<int64_t>(target.size());
    const double least = 0.03 * tolerance * std::sqrt(Square(target));
    // Nothing but noise is left where all were dropped.
    const bool none = tolerance > 0.2;
    Numbers strong;
    std::vector<int64_t> at;
    for (int64_t i = 0; i * C < static_cast<int64_t>(columns.size()); ++i) {
      const std::span<const double> column = std::span(columns).subspan(i * C, C);
      // What drowns in the noise counts as kept.
      if (!(std::sqrt(Square(column)) >= least)) continue;
      strong.insert(strong.end(), column.begin(), column.end());
      at.push_back(first + i);
    }
    const auto n = static_cast<int64_t>(at.size());
    for (int64_t i = 0; i < n && none; ++i) piece->kept[at[i]] = false;
    if (none || n == 0) return true;
    if (n > kMostByDigits || !IsDecidable(n, C, tolerance)) return false;
    const auto kept = ColumnsAlong(strong, target, tolerance);
    for (int64_t i = 0; i < n && kept; ++i) piece->kept[at[i]] = (*kept)[i];
    return kept.has_value();
  }

  bool DecidePiece(double gain, double near, SubsetSearch* search, Piece* piece) const {
    if (!std::isfinite(Square(piece->target))) return false;
    Numbers target = piece->Sum(piece->weak);
    for (size_t c = 0; c < target.size(); ++c) target[c] = piece->target[c] / gain - target[c];
    const double size = std::max(mean_, std::sqrt(Square(piece->target)));
    const auto kept = search->Nearest(std::move(target), near * size / gain);
    if (!kept) return false;
    piece->kept = piece->weak;
    for (int64_t i = 0, at = 0; i < piece->n(); ++i) {
      if (!piece->weak[i]) piece->kept[i] = (*kept)[at++];
    }
    return true;
  }

  // The gain that suits all rows best and the relative error that it leaves.
  static double Fit(const std::vector<Row>& rows, double* gain) {
    double along = 0, size = 0, all = 0;
    std::vector<std::pair<Numbers, const Numbers*>> sums;
    for (const Row& row : rows) {
      for (const Piece& piece : row) {
        const Numbers sum = piece.Sum(piece.kept);
        along += std::inner_product(sum.begin(), sum.end(), piece.target.begin(), 0.0);
        size += Square(sum);
        all += Square(piece.target);
        sums.emplace_back(sum, &piece.target);
      }
    }
    if (size == 0) return kInfinity;
    *gain = along / size;
    double error = 0;
    for (const auto& [sum, target] : sums) {
      for (size_t c = 0; c < sum.size(); ++c) error += std::pow((*target)[c] - *gain * sum[c], 2);
    }
    return std::sqrt(error / all);
  }

  // As many must be lost as chance loses of them, and one at least.
  bool IsLikely(const std::vector<Row>& rows, double gain) const {
    const double p = DroppedAt(gain);
    double count = 0, lost = 0;
    for (const Row& row : rows) {
      for (const Piece& piece : row) {
        for (int64_t i = 0; i < piece.n(); ++i) {
          if (!(Square(piece.Column(i)) > 100 * floor_ * floor_ * Square(piece.target))) continue;
          ++count;
          lost += !piece.kept[i];
        }
      }
    }
    return lost > 0 && lost < count &&
           std::abs(lost - p * count) <= 4 * std::sqrt(p * (1 - p) * count);
  }

  // The rows up to `end` that were not solved, as sums of so many random terms that they are almost
  // normal.
  void Weigh(int64_t end, SolvedDropout* found) const {
    constexpr double kBudget = 2e8;  // multiply-adds
    const double p = DroppedAt(found->gain), gain = found->gain;
    double distance = 0, count = 0, work = 0;
    for (int64_t t = found->rows; t < std::min(case_.T, end) && work < kBudget; ++t) {
      for (const Piece& piece : PiecesAt(t)) {
        const auto C = static_cast<double>(piece.C());
        work += C * C * (C / 3 + static_cast<double>(piece.n()));
        count += C;
        const auto [square, log_size] =
            DistanceOf(piece, gain * (1 - p), gain * gain * p * (1 - p));
        distance += square;
        found->likelihood -= (square + log_size) / 2;
      }
    }
    // The squares of kept-or-not spread more than a normal number's where p is small.
    const double excess = std::max(0.0, (1 - 6 * p * (1 - p)) / (p * (1 - p)));
    found->plausible = distance <= count + 6 * std::sqrt((2 + excess) * count);
    if (!std::isfinite(found->likelihood)) found->plausible = false;
  }

  // The squared distance of a piece from its mean in units of its covariance, and the logarithm of
  // that covariance's determinant, when each weight counts `mean` times with this variance.
  std::pair<double, double> DistanceOf(const Piece& piece, double mean, double variance) const {
    const int64_t C = piece.C(), n = piece.n();
    Numbers left = piece.Sum(std::vector<bool>(n, true));
    for (int64_t c = 0; c < C; ++c) left[c] = piece.target[c] - mean * left[c];
    Numbers m(C * C);
    const double noise = floor_ * floor_ * Square(piece.target) / static_cast<double>(C);
    for (int64_t a = 0; a < C; ++a) m[a * C + a] = noise + 1e-300;
    for (int64_t i = 0; i < n; ++i) {
      const std::span<const double> column = piece.Column(i);
      for (int64_t a = 0; a < C; ++a) {
        for (int64_t b = 0; b <= a; ++b) m[a * C + b] += variance * column[a] * column[b];
      }
    }
    // Cholesky's factor in place, and left divided by it.
    double square = 0, log_size = 0;
    for (int64_t a = 0; a < C; ++a) {
      for (int64_t b = 0; b <= a; ++b) {
        double sum = m[a * C + b];
        for (int64_t k = 0; k < b; ++k) sum -= m[a * C + k] * m[b * C + k];
        m[a * C + b] =
            a == b ? std::sqrt(std::max(sum, noise * 1e-6 + 1e-300)) : sum / m[b * C + b];
      }
      for (int64_t k = 0; k < a; ++k) left[a] -= m[a * C + k] * left[k];
      left[a] /= m[a * C + a];
      square += left[a] * left[a];
      log_size += 2 * std::log(m[a * C + a]);
    }
    return {square, log_size};
  }

  const AttentionDump& dump_;
  const AttentionCase& case_;
  const TheirTensor& last_;
  const AttentionRecipe& recipe_;
  const double floor_;
  const Numbers pattern_, v_;
  const int64_t S_;
  std::vector<Row> rows_;                            // those that were read
  double mean_ = 0;                                  // size of a piece's target
  std::vector<std::vector<SubsetSearch>> searches_;  // by row and piece
};

bool IsSolvable(Stage last, const AttentionRecipe& recipe) {
  return last >= Stage::kZ && !recipe.project.batch_as_time &&
         (recipe.project.transposed & kOProj) == 0 && !recipe.combine.transposed &&
         recipe.combine.merge == MergeKind::kRight;
}

const TheirTensor* Given(const AttentionDump& dump, Stage stage) {
  const auto found = std::ranges::find(dump.theirs, stage, &TheirTensor::stage);
  return found == dump.theirs.end() ? nullptr : &*found;
}

}  // namespace

std::optional<SolvedDropout> SolveDropout(const AttentionDump& dump, const AttentionRecipe& recipe,
                                          double floor, AttentionReplay* replay,
                                          DropoutEffort effort) {
  const TheirTensor& last = dump.theirs.back();
  const double least = dump.dropout > 0 ? 0.5 : LeastGain(floor);
  if (const TheirTensor* pattern = Given(dump, Stage::kPattern)) {
    Numbers ours = *replay->Tensor(recipe, Stage::kPattern);
    const double gain = DropAlike(pattern->values, &ours);
    const double residual = Residual(pattern->values, ours);
    if (gain < least || residual > floor) return std::nullopt;
    AttentionReplay with_theirs(dump.attention, dump.context);
    with_theirs.AssumePattern(recipe, std::move(ours));
    const double behind = Residual(last.values, *with_theirs.Tensor(recipe, last.stage));
    if (behind > floor) return std::nullopt;
    return SolvedDropout{gain, std::max(residual, behind), dump.attention.T, "of the weights"};
  }
  Numbers ours = *replay->Tensor(recipe, last.stage);
  const double gain = DropAlike(last.values, &ours);
  const double residual = Residual(last.values, ours);
  if (gain >= least && residual <= floor) {
    return SolvedDropout{gain, residual, dump.attention.T, "of " + last.name};
  }
  if (!IsSolvable(last.stage, recipe)) return std::nullopt;
  return Solver(dump, recipe, floor, replay).Solve(effort);
}

std::optional<double> DropoutLikelihood(const AttentionDump& dump, const AttentionRecipe& recipe,
                                        double floor, AttentionReplay* replay) {
  if (!IsSolvable(dump.theirs.back().stage, recipe)) return std::nullopt;
  return Solver(dump, recipe, floor, replay).Likelihood();
}

NoDrop ChanceOfNoDrop(const AttentionDump& dump, const AttentionRecipe& recipe, double floor,
                      AttentionReplay* replay) {
  const AttentionCase& a = dump.attention;
  // One of n rows of heads that loses a share w is w / sqrt(n) of the whole.
  const double rows = static_cast<double>(a.B * a.settings.n_head * a.T);
  const double least = 2 * floor * std::sqrt(rows);
  const auto pattern = replay->Tensor(recipe, Stage::kPattern);
  NoDrop no_drop;
  no_drop.weights = std::ranges::count_if(*pattern, [least](double w) { return w > least; });
  no_drop.chance = std::pow(1 - dump.dropout, static_cast<double>(no_drop.weights));
  return no_drop;
}

}  // namespace heed
