#include <numbers>

#include "inspect/lessons/lesson.h"
#include "inspect/lessons/rotary.h"

namespace heed {
namespace {

// The mean over j of |sum of the first j phases| at a distance: what bounds a score of width d
// there (Su et al. 2021, section 3.4.3).
double MeanPartialSum(int64_t d, int64_t distance) {
  double x = 0, y = 0, sum = 0;
  const std::vector<double> angles = RotaryAngles(d, 10000);
  for (const double angle : angles) {
    const std::vector<double> phase = Turned({1, 0}, distance, {angle});
    x += phase[0];
    y += phase[1];
    sum += std::hypot(x, y);
  }
  return sum / static_cast<double>(angles.size());
}

}  // namespace

Result<std::vector<Step>> TellRope(const LessonInput&) {
  using Numbers = std::vector<double>;
  const Numbers quarter = {std::numbers::pi / 2}, x = {1, 0}, skew = {1.0, 0.8};
  Numbers turned, norms;
  for (int p = 0; p < 4; ++p) {
    const Numbers at = Turned(x, p, quarter);
    turned.insert(turned.end(), at.begin(), at.end());
    norms.push_back(std::sqrt(Dot(at, at)));
  }
  Numbers scores;
  std::vector<std::string> pairs;
  for (const auto& [m, n] : {std::pair{0, 0}, {0, 1}, {0, 2}, {5, 7}, {100, 102}}) {
    scores.push_back(Dot(Turned(x, m, quarter), Turned(x, n, quarter)));
    pairs.push_back("(" + std::to_string(m) + "," + std::to_string(n) + ")");
  }
  // R(1)^T R(3) and R(2), column by column: turning back is turning by the negative position.
  const Numbers angles = RotaryAngles(4, 10000);
  Numbers product(16), direct(16);
  double largest = 0;
  for (size_t column = 0; column < 4; ++column) {
    Numbers unit(4);
    unit[column] = 1;
    const Numbers both = Turned(Turned(unit, 3, angles, true), -1, angles, true);
    const Numbers once = Turned(unit, 2, angles, true);
    for (size_t row = 0; row < 4; ++row) {
      product[row * 4 + column] = both[row];
      direct[row * 4 + column] = once[row];
      largest = std::max(largest, std::abs(both[row] - once[row]));
    }
  }
  Numbers bounds;
  std::vector<std::string> distances;
  for (const int64_t d : {128, 64}) {
    for (const int64_t distance : {0, 5, 10, 50, 100, 150, 250}) {
      bounds.push_back(MeanPartialSum(d, distance));
      if (d == 64) distances.push_back(std::to_string(distance));
    }
  }
  return std::vector<Step>{
      {"turned",
       "R(p) [1, 0], 90 degrees a step",
       "T d",
       {4, 2},
       turned,
       "",
       {"p0", "p1", "p2", "p3"}},
      {"norms",
       "|R(p) x|",
       "T",
       {4},
       norms,
       "A rotation keeps lengths.",
       {},
       {"p0", "p1", "p2", "p3"}},
      {"scores",
       "(R(m) q) . (R(n) k), q = k = [1, 0], for (m, n)",
       "pair",
       {static_cast<int64_t>(scores.size())},
       scores,
       "cos(90 degrees x (n - m)): the distance decides, not the place.",
       {},
       pairs},
      {"angle",
       "R(1) [1.0, 0.8], 1 radian a step",
       "d",
       {2},
       Turned(skew, 1, {1.0}),
       "Only an exact number like this one finds a wrong frequency: relative scores do not."},
      {"product", "R(1)^T R(3), d = 4, 1 and 0.01 radians a step", "d d", {4, 4}, product},
      {"direct", "R(2)", "d d", {4, 4}, direct},
      {"difference", "largest |R(1)^T R(3) - R(2)|", "", {}, {largest}},
      {"decay",
       "mean over j of |e^(i m a_1) + ... + e^(i m a_j)|, distance m",
       "d m",
       {2, static_cast<int64_t>(distances.size())},
       bounds,
       "What scores are bounded by falls with distance: a trend, not a law (look at 100 for d = "
       "64), "
       "and a bound, not the score of two given vectors.",
       {"d = 128", "d = 64"},
       distances}};
}

}  // namespace heed
