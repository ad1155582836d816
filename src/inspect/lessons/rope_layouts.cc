#include <fmt/format.h>

#include "inspect/lessons/lesson.h"
#include "inspect/lessons/rotary.h"

namespace heed {

Result<std::vector<Step>> TellRopeLayouts(const LessonInput&) {
  using Numbers = std::vector<double>;
  const Numbers q = {1, 2, 3, 4}, k = {0.5, -1, 2, 1};
  const Numbers angles = RotaryAngles(4, 10000);
  const auto join = [](Numbers a, const Numbers& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const std::vector<std::string> layouts = {"half: (0,2) (1,3)", "interleaved: (0,1) (2,3)"};
  // Scores of a query at position 5 with keys at positions 2 to 5, counted from `origin`.
  const auto scores = [&](int origin, bool interleaved) {
    Numbers row;
    for (int s = 2; s <= 5; ++s) {
      row.push_back(Dot(Turned(q, 5 + origin, angles, interleaved),
                        Turned(k, s + origin, angles, interleaved)));
    }
    return row;
  };
  const std::vector<std::string> keys = {"k2", "k3", "k4", "k5"};
  return std::vector<Step>{
      {"angles", "10000^(-2i/d) radians a step, d = 4", "pair", {2}, angles},
      {"q", "a query before rotation", "d", {4}, q},
      {"turned",
       "R(1) q in both layouts",
       "layout d",
       {2, 4},
       join(Turned(q, 1, angles, false), Turned(q, 1, angles, true)),
       "Other channels turn together: weights made for one layout are wrong in the other.",
       layouts},
      {"pairing",
       "scores of q at 5 with keys at 2 to 5",
       "layout S",
       {2, 4},
       join(scores(0, false), scores(0, true)),
       "At distance 0 both agree, elsewhere they do not: mixing them up is loud.",
       layouts,
       keys},
      {"vectors",
       "q at the first position, counted from 0 and from 1 (half)",
       "origin d",
       {2, 4},
       join(Turned(q, 0, angles), Turned(q, 1, angles)),
       "",
       {"from 0", "from 1"}},
      {"origin",
       "the same scores, counted from 0 and from 1 (half)",
       "origin S",
       {2, 4},
       join(scores(0, false), scores(1, false)),
       "The vectors differ, the scores do not: an origin is a convention.",
       {"from 0", "from 1"},
       keys}};
}

}  // namespace heed
