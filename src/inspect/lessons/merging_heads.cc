#include <algorithm>
#include <numeric>

#include "inspect/lessons/lesson.h"
#include "kernels/reference/attention.h"

namespace heed {

Result<std::vector<Step>> TellMergingHeads(const LessonInput&) {
  constexpr int64_t H = 2, T = 3, D = 2;
  std::vector<double> v(H * T * D), merged(T * H * D);
  std::iota(v.begin(), v.end(), 0.0);
  // Attention of each position to itself alone, so that the kernel's output is its values, merged.
  const std::vector<double> zeros(T * H * D);
  const AttentionArgs<double> args{.B = 1,
                                   .T_ = T,
                                   .S = T,
                                   .H = H,
                                   .Hkv = H,
                                   .D = D,
                                   .scale = 1,
                                   .window = 1,
                                   .q = zeros.data(),
                                   .q_row = H * D,
                                   .k = zeros.data(),
                                   .v = v.data(),
                                   .kv_row = D,
                                   .kv_head = T * D,
                                   .z = merged.data()};
  reference::AttentionForward(args);
  // Element n of [H, T, D] is head n / (T D), position n / D % T, channel n % D; values say n.
  std::vector<double> right_map, wrong_map;
  const auto place = [](double n, std::vector<double>* map) {
    const auto at = static_cast<int64_t>(n);
    map->push_back(static_cast<double>(at / D % T));
  };
  for (const double n : merged) place(n, &right_map);
  for (const double n : v) place(n, &wrong_map);
  const std::vector<std::string> positions = {"t0", "t1", "t2"},
                                 heads = {"h0 t0", "h0 t1", "h0 t2", "h1 t0", "h1 t1", "h1 t2"};
  const std::vector<std::string> columns = {"c0", "c1", "c2", "c3"};
  return std::vector<Step>{
      {"heads",
       "what each head gives, one row for each position",
       "B H T D",
       {1, H, T, D},
       v,
       "",
       heads},
      {"merged",
       "merged[t, h D + d] = heads[h, t, d]: axes move first",
       "B T HD",
       {1, T, H * D},
       merged,
       "Row t holds what every head says of position t.",
       positions,
       columns},
      {"source",
       "the position that each element came from",
       "B T HD",
       {1, T, H * D},
       right_map,
       "",
       positions,
       columns},
      {"reshaped",
       "the same memory read as [B, T, HD], axes not moved",
       "B T HD",
       {1, T, H * D},
       v,
       "As many elements, and the shape is right.",
       positions,
       columns},
      {"source",
       "the position that each element came from",
       "B T HD",
       {1, T, H * D},
       wrong_map,
       "Rows mix positions: row t0 is head 0 alone, and half of it is from t1.",
       positions,
       columns}};
}

}  // namespace heed
