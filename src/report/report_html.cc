// Reports as one page: no scripts, no fonts, nothing from elsewhere.
#include <fmt/format.h>

#include "base/plural.h"
#include "report/chart_svg.h"
#include "report/format.h"
#include "report/report.h"
#include "report/report_tables.h"

namespace heed {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2733; --soft: #5b6875; --line: #dde3e9;
  --card: #f6f8fa; --c0: #1f6fb4; --c1: #d9622b; --c2: #23876a; --c3: #a3459c; --c4: #8a6d1d;
  --c5: #5c6b73; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #12181f; --ink: #e4eaf0; --soft: #9aa7b4;
  --line: #2b3642; --card: #1a222b; --c0: #6cb2ee; --c1: #f2935c; --c2: #5cc7a3; --c3: #d68fd0;
  --c4: #d9b85c; --c5: #a5b2ba; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .5rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .5rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere; }
p { max-width: 75ch; margin: .4rem 0; }
.note { color: var(--soft); }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr));
  gap: 1rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 240px), 1fr));
  gap: .75rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem .75rem; break-inside: avoid; }
.card h4 { margin: 0 0 .3rem; font-size: .9rem; font-weight: 600; }
.card pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: .82rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
.card pre b { color: var(--c0); font-weight: 600; }
.card p { margin: .4rem 0 0; font-size: .78rem; color: var(--soft); }
.maps { display: grid; gap: .6rem;
  grid-template-columns: repeat(var(--heads), minmax(5.5rem, 12rem)); }
.maps figure { margin: 0; break-inside: avoid; }
.maps figcaption { font-size: .78rem; color: var(--soft); }
.maps figcaption b { color: var(--ink); }
.map { width: 100%; fill: var(--c0); background: var(--card); display: block; }
.map .frame { fill: none; stroke: var(--line); stroke-width: .2; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .25rem .7rem; text-align: left; border-bottom: 1px solid var(--line);
  vertical-align: top; }
thead th { color: var(--soft); font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 500; min-width: 8rem; }
td { min-width: 4.5rem; overflow-wrap: break-word; }
.numbers td, .numbers thead th:not(:first-child) { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.numbers thead th.word, .numbers td.word { text-align: left; }
.chart { width: 100%; height: auto; display: block; }
.chart polyline, .chart path { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .tick { fill: var(--soft); font-size: 13px; }
.chart .raw { opacity: .25; stroke-width: 1; }
.chart .held { stroke-width: 1; stroke-dasharray: 5 4; }
.chart .dots { stroke-width: 6; stroke-linecap: round; }
.chart .floor { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 2 3; }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); }
.s3 { stroke: var(--c3); } .s4 { stroke: var(--c4); } .s5 { stroke: var(--c5); }
@media print { :root { color-scheme: light; } body { font-size: 11pt; }
  main { max-width: none; padding: 0; } .scroll { overflow: visible; }
  p { max-width: none; break-inside: avoid; }
  .maps { grid-template-columns: repeat(var(--heads), minmax(0, 12rem)); }
  .pair { grid-template-columns: 1fr 1fr; } .chart, tr { break-inside: avoid; }
  h2, h3, h2 + p, h3 + p { break-after: avoid; } * { print-color-adjust: exact; }
  table { font-size: 8pt; } th, td { padding: .1rem .35rem; } tbody th { min-width: 0; } }
)";

std::string Charts(std::span<const ReportedRun> runs) {
  std::vector<RunCurve> curves;
  PlotRequest request;
  // Models of different kinds meet at the tokens that they have seen.
  if (runs.size() > 1) request.x = PlotX::kTokens;
  bool one_floor = true;
  for (const ReportedRun& run : runs) {
    curves.push_back({run.record.name, run.record.rows});
    const std::optional<double> floor = FiguresOf(run.record).floor;
    one_floor = one_floor && floor && (!request.floor || *request.floor == *floor);
    request.floor = floor;
  }
  if (!one_floor) request.floor.reset();
  std::string out = "<div class=\"pair\">\n";
  for (const PlotMetric metric : {PlotMetric::kLoss, PlotMetric::kPerplexity}) {
    request.metric = metric;
    out += "<div>" + ChartSvg(MakePicture(curves, request)) + "</div>\n";
  }
  return out + "</div>\n";
}

std::string Cards(const ReportedRun& run) {
  std::string out = fmt::format("<h3>{}</h3>\n<div class=\"cards\">\n", HtmlText(run.record.name));
  for (const SheetRow& row : run.sheet) {
    out += fmt::format(
        "<div class=\"card\"><h4>temperature {}</h4>\n<pre><b>{}</b>{}</pre>\n"
        "<p>entropy {:.2f}, distinct {:.0f}&nbsp;% and {:.0f}&nbsp;%, repetition "
        "{:.0f}&nbsp;%</p></div>\n",
        FormatFigure(row.temperature), HtmlText(row.prompt), HtmlText(row.text), row.entropy,
        100 * row.distinct_1, 100 * row.distinct_2, 100 * row.repetition);
  }
  return out + "</div>\n";
}

std::string Maps(const ReportedRun& run) {
  if (!run.heads) return "";
  const ReportedHeads& heads = *run.heads;
  std::string out = fmt::format("<h3>{}: maps</h3>\n", HtmlText(run.record.name));
  out += heads.ablation
             ? fmt::format(
                   "<p class=\"note\">Held-out loss {:.4f} over {} token{}; under each map, "
                   "how much it rises without that head.</p>\n",
                   heads.ablation->loss, FormatCount(heads.ablation->tokens),
                   Plural(heads.ablation->tokens))
             : "<p class=\"note\">No ablation: " + HtmlText(heads.no_ablation) + "</p>\n";
  std::string text;
  for (const std::string& label : heads.labels) text += label;
  out += "<p class=\"note\">A row of maps for each layer. Queries down, keys across: <q>" +
         HtmlText(text) + "</q></p>\n";
  out += fmt::format("<div class=\"scroll\"><div class=\"maps\" style=\"--heads: {}\">\n",
                     heads.maps.n_head);
  for (int64_t layer = 0; layer < heads.maps.n_layer; ++layer) {
    for (int64_t head = 0; head < heads.maps.n_head; ++head) {
      const std::string name = fmt::format("layer {} head {}", layer, head);
      const auto index = static_cast<size_t>(layer * heads.maps.n_head + head);
      out += "<figure>" +
             HeatMapSvg({name, heads.maps.T, heads.maps.Map(layer, head)}, heads.labels) +
             "<figcaption>" + name +
             (heads.ablation ? fmt::format(" <b>{:+.3f}</b>", heads.ablation->change[index]) : "") +
             "</figcaption></figure>\n";
    }
  }
  return out + "</div></div>\n";
}

// What stands in a section beside its tables.
std::string Pictures(const ReportSection& section, std::span<const ReportedRun> runs) {
  std::string out;
  if (section.title == "Figures") return Charts(runs);
  for (const ReportedRun& run : runs) {
    if (section.title == "Prompts and temperatures") out += Cards(run);
    if (section.title == "Heads") out += Maps(run);
  }
  return out;
}

}  // namespace

std::string ReportHtml(std::span<const ReportedRun> runs) {
  std::string names;
  for (const ReportedRun& run : runs) names += (names.empty() ? "" : ", ") + run.record.name;
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>heed report: "
      "{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n",
      HtmlText(names), kStyle);
  for (const std::string& sentence : ReportSummary(runs)) {
    out += "<p>" + HtmlText(sentence) + "</p>\n";
  }
  for (const ReportSection& section : ReportSections(runs)) {
    out += fmt::format("<section>\n<h2>{}</h2>\n", HtmlText(section.title));
    if (!section.note.empty()) {
      out += "<p class=\"note\">" + HtmlText(section.note) + "</p>\n";
    }
    out += Pictures(section, runs);
    for (const Table& table : section.tables) {
      out += "<h3>" + HtmlText(table.title) + "</h3>\n" + TableHtml(table);
    }
    out += "</section>\n";
  }
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace heed
