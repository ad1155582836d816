#include "base/nearest.h"

#include <algorithm>
#include <vector>

namespace heed {
namespace {

// Optimal string alignment distance.
size_t Distance(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    return x == y || ((x == '-' || x == '_') && (y == '-' || y == '_'));
  };
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1])) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string NearestName(std::string_view word, std::span<const std::string> known) {
  std::string best;
  // A word of thousands of letters is no slip of the fingers.
  if (word.size() > 100) return best;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : known) {
    const size_t distance = Distance(word, name);
    if (distance < least) {
      least = distance;
      best = name;
    }
  }
  if (!best.empty()) return best;
  for (const std::string& name : known) {
    if (word.size() >= 3 && name.starts_with(word)) return name;
  }
  return best;
}

}  // namespace heed
