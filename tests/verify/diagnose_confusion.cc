// What the diagnosis answers to each planted fault, over random sizes: the confusion matrix of
// docs/diagnose.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "support/planted_attention.h"
#include "verify/diagnose/attention_diagnosis.h"

namespace heed {
namespace {

double AsFloat(double x) { return static_cast<float>(x); }
double AsBf16(double x) { return Bf16ToFloat(DoubleToBf16(x)); }

// What a fault needs to show.
struct Planted {
  const char* fault;
  bool equal_heads = false, partial = false, window = false, cache = false;
  const char* same = "";  // what gives the same numbers: named beside it
  bool interleaved = false;
  int64_t first = 0;  // the number of the first position
  bool fine = false;  // shows below the noise of 16 bits alone
};

const Planted kPlanted[] = {{"mask_missing"},
                            {"mask_after_softmax"},
                            {"mask_polarity"},
                            {"mask_transposed"},
                            {"mask_diagonal_excluded"},
                            {"mask_shifted_by_one"},
                            {"mask_01_added"},
                            {"mask_convention_mixed", false, false, false, false, "scale_zero"},
                            {"mask_fill_too_weak"},
                            {"scale_missing"},
                            {"scale_d_model"},
                            {"scale_num_heads"},
                            {"scale_linear"},
                            {"scale_zero", false, false, false, false, "mask_convention_mixed"},
                            {"scale_value"},
                            {"softmax_axis_query"},
                            {"softmax_plus_one_shift"},
                            {"softmax_axes_mixed"},
                            {"attention_transposed"},
                            {"dropout_live_in_eval"},
                            {"heads_not_split"},
                            {"heads_merged_untransposed"},
                            {"gqa_tiled"},
                            {"gqa_divisor"},
                            {"kv_swapped"},
                            {"bias_missing"},
                            {"rope_pairing"},
                            {"rope_missing"},
                            {"rope_sign"},
                            {"rope_k_sign_only"},
                            {"rope_on_v"},
                            {"rope_theta"},
                            {"rope_wrong_axis"},
                            {"qk_swapped", true},
                            {"qk_from_one_tensor", true},
                            {"rope_partial_ignored", false, true},
                            {"rope_freq_width", false, true},
                            {"window_off_by_one", false, false, true},
                            {"window_sign", false, false, true},
                            {"position_restart", false, false, false, true},
                            {"causal_align_top_left", false, false, false, true},
                            {"cache_not_read", false, false, false, true},
                            {"rope_window_constant", false, false, false, true},
                            {"position_upper_layers", false, false, false, true},
                            {"beam_cache_not_reordered", false, false, false, true},
                            {"softcap_after_mask"},
                            {"scale_head_dim_vs_width"},
                            {"softmax_axis_head"},
                            {"softmax_tile_local_max"},
                            {"gqa_repeat_axis"},
                            {"heads_merged_wrong_lead"},
                            {"rope_twice"},
                            {.fault = "rope_low_precision", .fine = true},
                            {.fault = "rope_output_not_reinterleaved", .interleaved = true},
                            {.fault = "evicted_length_as_position", .cache = true, .first = 3},
                            {.fault = "cache_hole", .cache = true},
                            {.fault = "cache_head_stride", .cache = true},
                            {.fault = "cache_dtype_reinterpreted", .cache = true},
                            {.fault = "prefix_reuse_misaligned", .cache = true}};

// Sizes pairwise different.
PlantedCase Sizes(const Planted& planted, uint64_t seed) {
  uint64_t draw = 0;
  const auto pick = [&](std::vector<int64_t> from) {
    return from[RandomBelow({seed, 9, 0}, draw++, from.size())];
  };
  PlantedCase sizes{.seed = seed};
  do {
    sizes.B = pick({2, 3, 4});
    sizes.T = pick({5, 7, 9, 11});
    sizes.Hkv = pick({2, 3, 5});
    sizes.H = planted.equal_heads ? sizes.Hkv : sizes.Hkv * pick({2, 3, 4});
    sizes.D = pick({6, 8, 10, 14});
    sizes.C = pick({18, 22, 26, 34});
  } while (std::set<int64_t>{sizes.B, sizes.T, sizes.H, sizes.D, sizes.C}.size() < 5 ||
           sizes.B == sizes.Hkv || sizes.H == sizes.Hkv * sizes.Hkv);
  sizes.interleaved = pick({0, 1}) == 1;
  // The planted widths pair halves.
  if (planted.partial) sizes.interleaved = false;
  sizes.interleaved |= planted.interleaved;
  sizes.first = planted.first;
  sizes.rotary_dim = planted.partial ? 4 : sizes.D;
  if (planted.window) sizes.window = 3;
  if (planted.cache) sizes.P = 4;
  return sizes;
}

std::string Answer(const PlantedCase& sizes, const std::set<std::string>& faults, bool bf16) {
  const TensorSet set = PlantedAttention(sizes, faults, bf16 ? AsBf16 : AsFloat).Dump();
  const auto diagnosis = DiagnoseAttention(set.File(), "planted", {});
  if (!diagnosis) return "refused";
  std::vector<std::string> names;
  for (const Explanation& explanation : diagnosis->explanations) {
    names.push_back(explanation.faults.empty()
                        ? "correct"
                        : fmt::format("{}", fmt::join(explanation.faults, " + ")));
  }
  return names.empty() ? "unexplained" : fmt::format("{}", fmt::join(names, " | "));
}

bool IsRight(const std::string& answer, const Planted& planted) {
  const std::string fault = planted.fault, same = planted.same;
  if (same.empty()) return answer == fault;
  return answer == fault + " | " + same || answer == same + " | " + fault;
}

void PrintSingles(uint64_t seeds) {
  fmt::print("{:<28} {:>5} {:>5}  {}\n", "planted", "f32", "bf16", "other answers");
  int64_t right[2] = {}, all[2] = {};
  for (const Planted& planted : kPlanted) {
    std::map<std::string, int> others;
    int64_t named[2] = {};
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      for (const bool bf16 : {false, true}) {
        if (bf16 && planted.fine) continue;
        const std::string answer = Answer(Sizes(planted, seed), {planted.fault}, bf16);
        if (IsRight(answer, planted)) {
          ++named[bf16];
        } else {
          ++others[answer];
        }
      }
    }
    for (const int type : {0, 1}) {
      right[type] += named[type];
      all[type] += type == 1 && planted.fine ? 0 : static_cast<int64_t>(seeds);
    }
    std::string text;
    for (const auto& [answer, count] : others) text += fmt::format("{} x {}  ", count, answer);
    if (*planted.same != 0) text += fmt::format("beside {}, which gives the same", planted.same);
    fmt::print("{:<28} {:>5} {:>5}  {}\n", planted.fault, named[0], named[1], text);
  }
  fmt::print(
      "named alone, or beside what gives the same numbers: {} of {} in f32, {} of {} in bf16\n",
      right[0], all[0], right[1], all[1]);
}

// Whether the numbers are those of fewer faults.
bool Same(const PlantedCase& sizes, const std::set<std::string>& faults,
          const std::set<std::string>& fewer) {
  TensorSet a = PlantedAttention(sizes, faults, AsFloat).Dump();
  TensorSet b = PlantedAttention(sizes, fewer, AsFloat).Dump();
  // Nothing but NaN is left.
  if (std::ranges::all_of(a["y"].values, [](double x) { return std::isnan(x); })) return true;
  return std::ranges::equal(a["y"].values, b["y"].values, [](double x, double y) {
    return x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) < 1e-6;
  });
}

void PrintPairs(uint64_t count) {
  uint64_t named = 0, tried = 0, hidden = 0;
  std::vector<const Planted*> plain;  // what needs nothing special
  for (const Planted& p : kPlanted) {
    const bool special = p.equal_heads || p.partial || p.window || p.cache || p.interleaved;
    if (!special) plain.push_back(&p);
  }
  for (uint64_t seed = 1; tried < count; ++seed) {
    const Planted& a = *plain[RandomBelow({seed, 10, 0}, 0, plain.size())];
    const Planted& b = *plain[RandomBelow({seed, 10, 0}, 1, plain.size())];
    // Two choices of one stage cannot both be made.
    if (std::string(a.fault).substr(0, 4) == std::string(b.fault).substr(0, 4)) continue;
    ++tried;
    const std::set<std::string> faults = {a.fault, b.fault};
    const std::string answer = Answer(Sizes(a, seed), faults, false);
    const bool right =
        answer.find(fmt::format("{}", fmt::join(faults, " + "))) != std::string::npos;
    named += right;
    if (right) continue;
    const bool hides =
        Same(Sizes(a, seed), faults, {a.fault}) || Same(Sizes(a, seed), faults, {b.fault});
    hidden += hides;
    fmt::print("{} + {}: {}{}\n", a.fault, b.fault, answer, hides ? " (both do not show)" : "");
  }
  fmt::print("pairs: {} of {} named in f32; in {} of the others one fault hides the other\n", named,
             tried, hidden);
}

// Correct implementations, and what those that are accused are accused of.
void PrintCorrect(const char* kind, TensorSet (*make)(uint64_t), uint64_t count) {
  std::map<std::string, int> answers;
  for (uint64_t seed = 1; seed <= count; ++seed) {
    const auto diagnosis = DiagnoseAttention(make(seed).File(), "right", {});
    std::string answer = diagnosis ? std::string(NameOf(diagnosis->verdict)) : "refused";
    if (diagnosis && diagnosis->verdict != DiagnosisVerdict::kCorrect) {
      answer += fmt::format(" (seed {})", seed);
      for (const Explanation& e : diagnosis->explanations) {
        answer += fmt::format(" {}", fmt::join(e.faults, " + "));
      }
    }
    ++answers[answer];
  }
  for (const auto& [answer, times] : answers) {
    fmt::print("of {} correct {}: {} {}\n", count, kind, times, answer);
  }
}

}  // namespace
}  // namespace heed

int main(int argc, char** argv) {
  const auto number = [&](int i, uint64_t otherwise) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
  };
  const uint64_t seeds = number(1, 3);
  heed::PrintSingles(seeds);
  heed::PrintPairs(20 * seeds);
  heed::PrintCorrect("ones", heed::RandomCorrect, number(2, 10000));
  heed::PrintCorrect("ones with padding, documents, slopes or norms", heed::RandomCorrectInContext,
                     number(2, 10000));
}
