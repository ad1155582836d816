// What the diagnosis answers to each planted fault, over random sizes: the confusion matrix of
// docs/diagnose-confusion.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "support/planted_faults.h"

namespace heed {
namespace {

// One row of the matrix: how often a planted fault is named, in f32 and in bf16, and what else is
// said of it.
struct Row {
  std::string kind, id, same, not_bf16;
  int64_t named[2] = {}, planted[2] = {};
  std::map<std::string, int> others;
};

std::vector<Row> RowsOf(uint32_t seeds) {
  std::vector<Row> rows;
  for (const PlantedFault& fault : PlantedFaults::List()) {
    // Two ways to plant one fault share a row.
    if (rows.empty() || rows.back().id != fault.id) {
      rows.push_back({fault.kind, fault.id, fault.same, fault.not_bf16});
    }
    Row& row = rows.back();
    for (uint32_t seed = 1; seed <= seeds; ++seed) {
      for (const int bf16 : {0, 1}) {
        const DType dtype = bf16 == 1 ? DType::kBF16 : DType::kF32;
        if (!fault.Shows(dtype)) continue;
        const std::string finding = Finding(fault.diagnose(seed, dtype));
        ++row.planted[bf16];
        if (fault.IsRight(finding)) {
          ++row.named[bf16];
        } else {
          ++row.others[finding];
        }
      }
    }
  }
  return rows;
}

void PrintSingles(uint32_t seeds) {
  fmt::print("{:<10} {:<34} {:>7} {:>7}  {}\n", "kind", "planted", "f32", "bf16", "other answers");
  int64_t named[2] = {}, planted[2] = {};
  for (const Row& row : RowsOf(seeds)) {
    std::string text[2], note;
    for (const int bf16 : {0, 1}) {
      named[bf16] += row.named[bf16];
      planted[bf16] += row.planted[bf16];
      text[bf16] = fmt::format("{}/{}", row.named[bf16], row.planted[bf16]);
    }
    if (!row.not_bf16.empty()) text[1] = "-";
    for (const auto& [answer, count] : row.others) note += fmt::format("{} x {}  ", count, answer);
    if (!row.same.empty()) note += "beside " + row.same + ", which gives the same numbers";
    if (!row.not_bf16.empty()) note += row.not_bf16;
    fmt::print("{:<10} {:<34} {:>7} {:>7}  {}\n", row.kind, row.id, text[0], text[1], note);
  }
  fmt::print(
      "named alone, or beside what gives the same numbers: {} of {} in f32, {} of {} in bf16\n",
      named[0], planted[0], named[1], planted[1]);
}

std::string Answer(const PlantedCase& sizes, const std::set<std::string>& faults) {
  const TensorSet set = PlantedAttention(sizes, faults, StoredAsFloat).Dump();
  return Finding(DiagnoseAttention(set.File(), "planted", {}));
}

// Whether the numbers are those of fewer faults.
bool Same(const PlantedCase& sizes, const std::set<std::string>& faults,
          const std::set<std::string>& fewer) {
  TensorSet a = PlantedAttention(sizes, faults, StoredAsFloat).Dump();
  TensorSet b = PlantedAttention(sizes, fewer, StoredAsFloat).Dump();
  // Nothing but NaN is left.
  if (std::ranges::all_of(a["y"].values, [](double x) { return std::isnan(x); })) return true;
  return std::ranges::equal(a["y"].values, b["y"].values, [](double x, double y) {
    return x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) < 1e-6;
  });
}

// Sets of so many faults that need nothing special.
void PrintSets(const char* kind, uint64_t size, uint64_t count) {
  uint64_t named = 0, tried = 0, hidden = 0;
  std::vector<std::string> plain;
  for (const AttentionPlant& plant : AttentionPlants()) {
    if (plant.plain) plain.push_back(plant.fault);
  }
  for (uint64_t seed = 1; tried < count; ++seed) {
    std::set<std::string> faults, stages;
    for (uint64_t i = 0; i < size; ++i) {
      const std::string& fault = plain[RandomBelow({seed, 10, 0}, i, plain.size())];
      faults.insert(fault);
      stages.insert(fault.substr(0, 4));
    }
    // Two choices of one stage cannot both be made.
    if (stages.size() < size) continue;
    ++tried;
    const PlantedCase sizes = PlantedSizes(seed, [](PlantedCase*) {});
    const std::string answer = Answer(sizes, faults);
    const std::string joined = fmt::format("{}", fmt::join(faults, " + "));
    const bool right = answer.find(joined) != std::string::npos;
    named += right;
    if (right) continue;
    const bool hides = std::ranges::any_of(faults, [&](const std::string& fault) {
      std::set<std::string> fewer = faults;
      fewer.erase(fault);
      return Same(sizes, faults, fewer);
    });
    hidden += hides;
    fmt::print("{}: {}{}\n", joined, answer, hides ? " (not all show)" : "");
  }
  fmt::print("{}: {} of {} named in f32; in {} of the others one fault hides another\n", kind,
             named, tried, hidden);
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
  heed::PrintSingles(static_cast<uint32_t>(seeds));
  heed::PrintSets("pairs", 2, 20 * seeds);
  heed::PrintSets("triples", 3, 20 * seeds);
  heed::PrintCorrect("ones", heed::RandomCorrect, number(2, 10000));
  heed::PrintCorrect("ones with padding, documents, slopes or norms", heed::RandomCorrectInContext,
                     number(2, 10000));
}
