#include "report/summary.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "report/format.h"

namespace heed {
namespace {

std::string Figure(const std::optional<double>& value) {
  return value ? FormatFigure(*value) : "-";
}

std::string Count(int64_t count) { return count > 0 ? FormatCount(count) : "-"; }

std::vector<std::string> Head(const char* first, std::span<const RunRecord> runs) {
  std::vector<std::string> head = {first};
  for (const RunRecord& run : runs) head.push_back(run.name);
  return head;
}

}  // namespace

std::string HeldOutText(double loss) {
  return fmt::format("held-out loss {} (perplexity {})", FormatFigure(loss),
                     FormatFigure(std::exp(loss)));
}

Table DifferenceTable(std::span<const RunRecord> runs) {
  Table table{"settings that differ", Head("setting", runs), {}};
  for (const Difference& difference : DifferencesOf(runs)) {
    table.rows.push_back({difference.setting});
    table.rows.back().insert(table.rows.back().end(), difference.values.begin(),
                             difference.values.end());
  }
  return table;
}

Table FigureTable(std::span<const RunRecord> runs) {
  using F = const RunFigures&;
  const std::pair<const char*, std::function<std::string(F)>> rows[] = {
      {"parameters", [](F f) { return Count(f.parameters); }},
      {"cache bytes a position (f32)", [](F f) { return Count(4 * f.cache_elements); }},
      {"updates", [](F f) { return Count(f.updates); }},
      {"tokens seen", [](F f) { return FormatCount(f.tokens); }},
      {"held-out loss", [](F f) { return Figure(f.val_loss); }},
      {"held-out perplexity",
       [](F f) { return f.val_loss ? FormatFigure(std::exp(*f.val_loss)) : "-"; }},
      {"training loss (mean)", [](F f) { return FormatFigure(f.train_loss); }},
      {"least held-out loss",
       [](F f) {
         if (!f.best_val_loss) return std::string("-");
         return FormatFigure(*f.best_val_loss) +
                (f.updates > 0 ? fmt::format(" at {}", f.best_iter) : "");
       }},
      {"floor of the text", [](F f) { return Figure(f.floor); }},
      {"tokens per second", [](F f) { return FormatQuantity(f.tokens_per_second); }},
      {"time", [](F f) { return FormatDuration(f.elapsed_s); }},
  };
  Table table{"figures", Head("figure", runs), {}};
  for (const auto& [name, show] : rows) {
    table.rows.push_back({name});
    for (const RunRecord& run : runs) table.rows.back().push_back(show(FiguresOf(run)));
  }
  return table;
}

}  // namespace heed
