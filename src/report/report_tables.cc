#include "report/report_tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/format.h"
#include "report/summary.h"
#include "tensor/shape.h"

namespace heed {
namespace {

std::vector<RunRecord> Records(std::span<const ReportedRun> runs) {
  std::vector<RunRecord> records;
  for (const ReportedRun& run : runs) records.push_back(run.record);
  return records;
}

// Every setting of every run; "-" where a kind of model does not have it.
Table SettingsTable(std::span<const RunRecord> runs) {
  Table table{"all settings", {"setting"}, {}, {}};
  for (const RunRecord& run : runs) table.head.push_back(run.name);
  table.words = table.head;
  for (const RunRecord& owner : runs) {
    for (const auto& [setting, unused] : owner.settings) {
      if (std::ranges::count(table.rows, setting, [](const auto& row) { return row[0]; }) > 0) {
        continue;
      }
      table.rows.push_back({setting});
      for (const RunRecord& run : runs) {
        const auto at =
            std::ranges::find(run.settings, setting, [](const auto& s) { return s.first; });
        table.rows.back().push_back(at == run.settings.end() ? "-" : at->second);
      }
    }
  }
  return table;
}

Table SheetTable(const ReportedRun& run) {
  Table table{run.record.name + ": samples",
              {"prompt", "temperature", "tokens", "entropy", "distinct 1", "distinct 2",
               "repetition", "tokens/s"},
              {}};
  for (const SheetRow& row : run.sheet) {
    table.rows.push_back({row.prompt, FormatFigure(row.temperature), FormatCount(row.tokens),
                          fmt::format("{:.3f}", row.entropy), fmt::format("{:.3f}", row.distinct_1),
                          fmt::format("{:.3f}", row.distinct_2),
                          fmt::format("{:.3f}", row.repetition),
                          FormatQuantity(row.tokens_per_second)});
  }
  return table;
}

// Blocks are alike: the first one is shown.
Table ShapeTable(const ReportedRun& run) {
  const Ledger& ledger = *run.ledger;
  Table table{run.record.name + ": tensors of a pass",
              {"tensor", "axes", "shape", "elements", "bytes", "FLOPs", "memory"},
              {},
              {"axes", "memory"}};
  for (const LedgerTensor& t : ledger.tensors) {
    if (OfALaterBlock(t.name)) continue;
    table.rows.push_back({t.name, t.axes, ShapeText(t.shape), FormatCount(t.elements),
                          FormatBytes(static_cast<double>(t.bytes)),
                          t.flops == 0 ? "-" : FormatQuantity(static_cast<double>(t.flops)),
                          t.memory});
  }
  return table;
}

Table MemoryTable(const ReportedRun& run) {
  const Ledger& ledger = *run.ledger;
  const Ledger& one = *run.one;
  const ModelConfig& c = ledger.config;
  Table table{
      run.record.name + ": memory", {"what", "formula", "bytes", "measured"}, {}, {"formula"}};
  const auto add = [&](const std::string& what, const std::string& formula, int64_t bytes,
                       const std::string& measured) {
    table.rows.push_back({what, formula, FormatCount(bytes), measured});
  };
  const std::string held =
      one.measured_cache_bytes ? FormatCount(*one.measured_cache_bytes) + " held" : "-";
  add("key/value cache, one sequence",
      fmt::format("2 x {} layers x {} heads x {} x {} x 4", c.n_layer, c.n_kv_head, one.T,
                  c.head_dim),
      4 * one.cache_elements, held);
  add("the same with as many heads as queries",
      fmt::format("2 x {} x {} x {} x {} x 4", c.n_layer, c.n_head, one.T, c.head_dim),
      4 * one.cache_elements_mha, "-");
  const TrainingBytes& b = ledger.training;
  add("parameters", fmt::format("{} x 4", FormatCount(ledger.parameter_count)), b.parameters,
      FormatCount(run.weight_file_bytes) + " in the file");
  add("gradients", "as the parameters", b.gradients, "-");
  add("AdamW's moments", "twice the parameters", b.optimizer, "-");
  const std::string batch = fmt::format("B = {}, T = {}", ledger.B, ledger.T);
  add("activations kept for backward", batch, b.saved, "-");
  add("workspace", batch, b.workspace, "-");
  add("training, in all", "the five above", b.total(), "-");
  return table;
}

Table HeadTable(const ReportedRun& run) {
  const ReportedHeads& heads = *run.heads;
  Table table{run.record.name + ": heads",
              {"head", "entropy", "distance", "on self", "on previous", "on first",
               "change of loss without it"},
              {}};
  for (int64_t layer = 0; layer < heads.maps.n_layer; ++layer) {
    for (int64_t head = 0; head < heads.maps.n_head; ++head) {
      const HeadHabits h = HabitsOf(heads.maps, layer, head);
      const auto index = static_cast<size_t>(layer * heads.maps.n_head + head);
      table.rows.push_back(
          {fmt::format("layer {} head {}", layer, head), fmt::format("{:.3f}", h.entropy),
           fmt::format("{:.2f}", h.distance), fmt::format("{:.3f}", h.self),
           fmt::format("{:.3f}", h.previous), fmt::format("{:.3f}", h.first),
           heads.ablation ? fmt::format("{:+.4f}", heads.ablation->change[index]) : "-"});
    }
  }
  return table;
}

}  // namespace

std::vector<ReportSection> ReportSections(std::span<const ReportedRun> runs) {
  const std::vector<RunRecord> records = Records(runs);
  std::vector<ReportSection> sections;
  sections.push_back({"Figures",
                      "Losses are in nats per token; perplexity is the exponential of a loss. The "
                      "held-out loss is that of the last evaluation. The training loss (mean) is "
                      "the mean of the last logged updates, where the curve ends.",
                      {FigureTable(records)}});
  ReportSection sheet{
      "Prompts and temperatures",
      "Entropy is that of the distributions the tokens were drawn from, in nats; distinct 1 and 2 "
      "the share of words and pairs of words that are new in their text; repetition the share of "
      "triples that were there before.",
      {}};
  ReportSection shapes{"Shapes", "Of the first block; the others are like it.", {}};
  ReportSection memory{"Memory", "By formula, and as this program holds it.", {}};
  ReportSection heads{"Heads", kMapCaution, {}};
  for (const ReportedRun& run : runs) {
    sheet.tables.push_back(SheetTable(run));
    if (!run.ledger) continue;
    shapes.tables.push_back(ShapeTable(run));
    memory.tables.push_back(MemoryTable(run));
    if (run.heads) heads.tables.push_back(HeadTable(run));
  }
  ReportSection settings{"Settings", "", {}};
  if (runs.size() > 1) {
    settings.tables.push_back(DifferenceTable(records));
    settings.tables.back().words = settings.tables.back().head;
  }
  settings.tables.push_back(SettingsTable(records));
  for (ReportSection* section : {&sheet, &heads, &shapes, &memory, &settings}) {
    if (!section->tables.empty()) sections.push_back(std::move(*section));
  }
  return sections;
}

std::vector<std::string> ReportSummary(std::span<const ReportedRun> runs) {
  std::vector<std::string> sentences;
  for (const ReportedRun& run : runs) {
    const std::optional<double> val_loss = FiguresOf(run.record).val_loss;
    if (val_loss) sentences.push_back(run.record.name + ": " + HeldOutText(*val_loss) + ".");
  }
  for (size_t i = 1; i < runs.size(); ++i) {
    sentences.push_back(EffectOf(runs[i].record, runs[0].record));
  }
  return sentences;
}

}  // namespace heed
