// Reports as Markdown and CSV.
#include <fmt/format.h>

#include "report/report.h"
#include "report/report_tables.h"

namespace heed {
namespace {

// As a block that Markdown leaves alone: the fence is longer than any in the text.
std::string Verbatim(const std::string& text) {
  size_t longest = 2, run = 0;
  for (const char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string fence(longest + 1, '`');
  return fence + "text\n" + text + "\n" + fence + "\n\n";
}

}  // namespace

std::string ReportMarkdown(std::span<const ReportedRun> runs) {
  std::string out = "# heed report\n\n";
  for (const std::string& sentence : ReportSummary(runs)) out += "- " + sentence + "\n";
  for (const ReportSection& section : ReportSections(runs)) {
    out += fmt::format("\n## {}\n\n", section.title);
    if (!section.note.empty()) out += section.note + "\n\n";
    for (const Table& table : section.tables) {
      out += fmt::format("### {}\n\n{}\n", table.title, TableMarkdown(table));
    }
  }
  out += "\n## Texts\n\n";
  for (const ReportedRun& run : runs) {
    for (const SheetRow& row : run.sheet) {
      out += fmt::format("{}, temperature {}:\n\n{}", run.record.name, row.temperature,
                         Verbatim(row.prompt + row.text));
    }
  }
  return out;
}

std::string ReportCsv(std::span<const ReportedRun> runs) {
  std::string out = "table,row,column,value\r\n";
  for (const ReportSection& section : ReportSections(runs)) {
    for (Table table : section.tables) {
      // A row's name is its prompt and temperature.
      if (table.title.ends_with(": samples")) {
        for (auto& row : table.rows) row[0] += " at " + row[1];
      }
      out += TableCsv(table);
    }
  }
  return out;
}

}  // namespace heed
