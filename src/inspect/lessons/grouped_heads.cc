#include <fmt/format.h>

#include "base/plural.h"
#include "inspect/lessons/lesson.h"
#include "kernels/reference/attention.h"

namespace heed {
namespace {

constexpr int64_t kHeads = 6;

// Row h, column j: 1 when changing key head j alone moves the output of query head h.
std::vector<double> WhoReadsWhom(int64_t n_kv_head) {
  const std::vector<double> q(kHeads), k(n_kv_head);
  const auto output = [&](int64_t changed) {
    std::vector<double> v(n_kv_head), z(kHeads);
    if (changed >= 0) v[changed] = 1;
    reference::AttentionForward<double>({.B = 1,
                                         .T_ = 1,
                                         .S = 1,
                                         .H = kHeads,
                                         .Hkv = n_kv_head,
                                         .D = 1,
                                         .scale = 1,
                                         .q = q.data(),
                                         .q_row = kHeads,
                                         .k = k.data(),
                                         .v = v.data(),
                                         .kv_row = n_kv_head,
                                         .kv_head = 1,
                                         .z = z.data()});
    return z;
  };
  const std::vector<double> before = output(-1);
  std::vector<double> reads(kHeads * n_kv_head);
  for (int64_t j = 0; j < n_kv_head; ++j) {
    const std::vector<double> after = output(j);
    for (int64_t h = 0; h < kHeads; ++h) reads[h * n_kv_head + j] = after[h] != before[h];
  }
  return reads;
}

std::vector<std::string> Names(const char* prefix, int64_t n) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < n; ++i) names.push_back(fmt::format("{}{}", prefix, i));
  return names;
}

}  // namespace

Result<std::vector<Step>> TellGroupedHeads(const LessonInput&) {
  std::vector<Step> steps;
  const auto add = [&](const char* name, int64_t n_kv_head, const char* note) {
    steps.push_back({name,
                     fmt::format("6 query heads, {} key/value head{}: floor(h / {})", n_kv_head,
                                 Plural(n_kv_head), kHeads / n_kv_head),
                     "H Hkv",
                     {kHeads, n_kv_head},
                     WhoReadsWhom(n_kv_head),
                     note,
                     Names("q", kHeads),
                     Names("kv", n_kv_head)});
  };
  add("MHA", 6, "Found by changing one value head at a time: every query head has its own.");
  add("GQA", 3, "Neighbours share. The tempting h mod 3 has the same shapes and other numbers.");
  add("GQA", 2, "");
  add("MQA", 1, "All share one: the cache is a sixth.");
  return steps;
}

}  // namespace heed
