#include "report/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/fields_text.h"
#include "base/json.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model/config_json.h"
#include "report/format.h"
#include "report/plot.h"

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

namespace heed {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = size_t{16} << 20;

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

using Settings = std::vector<std::pair<std::string, std::string>>;

// Also the texts of `data`, where they are given.
Result<Settings> ReadSettings(const std::string& path, std::vector<std::string>* data) {
  Settings settings;
  if (!Exists(path)) return settings;
  HEED_ASSIGN(const std::string text, ReadFile(path, kMostBytes));
  const toml::parse_result parsed = toml::parse(text, path);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return Fail(ErrorKind::kFormat, fmt::format("{}:{}", path, error.source().begin.line),
                std::string(error.description()), "lines such as n_layer = 4");
  }
  std::vector<std::pair<uint32_t, std::pair<std::string, std::string>>> placed;
  for (const auto& [key, node] : parsed.table()) {
    std::ostringstream value;
    if (const auto* list = node.as_array(); list != nullptr && key.str() == "data") {
      list->for_each([&](const auto& source) {
        if constexpr (toml::is_string<decltype(source)>) {
          value << (data->empty() ? "" : ", ") << source.get();
          data->push_back(source.get());
        }
      });
    } else if (const auto* words = node.as_string()) {
      value << words->get();
    } else if (const auto* number = node.as_floating_point()) {
      // A tenth of 0.003 is 0.00030000000000000003.
      value << fmt::format("{:.10g}", number->get());
    } else {
      node.visit([&value](const auto& v) { value << v; });
    }
    placed.push_back({key.source().begin.line, {std::string(key.str()), value.str()}});
  }
  std::ranges::stable_sort(placed, {}, [](const auto& entry) { return entry.first; });
  for (auto& entry : placed) settings.push_back(std::move(entry.second));
  return settings;
}

// Nothing for an n-gram model, which has no layers.
Result<std::optional<ModelConfig>> ReadConfig(const std::string& path) {
  HEED_ASSIGN(const std::string text, ReadFile(path, kMostBytes));
  HEED_ASSIGN(const nlohmann::json json, ParseJsonObject(text, path));
  if (json.value("model", nlohmann::json()) == NameOf(ModelKind::kNgram)) return std::nullopt;
  HEED_ASSIGN(const ModelConfig config, ParseModelConfig(text, path));
  return config;
}

// Updates made when the checkpoint was written: a run that was stopped made some behind its last
// row. 0 without a checkpoint that tells.
int64_t UpdatesOf(const std::string& path) {
  const auto checkpoint = SafetensorsFile::Open(path);
  if (!checkpoint) return 0;
  const auto& metadata = checkpoint->metadata();
  const auto at = metadata.find("iteration");
  int64_t updates = 0;
  if (at == metadata.end() || !ParseField(at->first, at->second, &updates)) return 0;
  return updates;
}

// The last row that has a held-out loss and has seen at most that many tokens.
const MetricsRow* EvaluatedBy(const RunRecord& run, int64_t tokens) {
  const MetricsRow* found = nullptr;
  for (const MetricsRow& row : run.rows) {
    if (row.val_loss && row.tokens <= tokens) found = &row;
  }
  return found;
}

// Where the curve of means ends that pictures draw of the training loss.
double MeanTrainLoss(std::span<const MetricsRow> rows) {
  std::vector<double> losses;
  for (const MetricsRow& row : rows) {
    if (std::isfinite(row.train_loss)) losses.push_back(row.train_loss);
  }
  return losses.empty() ? rows.back().train_loss : Smoothed(losses).back();
}

// "1.30 times as fast", "105 times slower".
std::string SpeedText(double ratio) {
  constexpr double kShown = 1.005;  // from which three digits show a difference
  if (std::max(ratio, 1 / ratio) < kShown) return "as fast";
  return ratio > 1 ? FormatQuantity(ratio) + " times as fast"
                   : FormatQuantity(1 / ratio) + " times slower";
}

std::string Change(double from, double to) {
  return fmt::format("{:+.4f} nats per token, perplexity {:+.1f} %", to - from,
                     100 * std::expm1(to - from));
}

}  // namespace

Result<RunRecord> ReadRun(const std::string& folder) {
  RunRecord run;
  run.folder = folder;
  const fs::path path = fs::path(folder).lexically_normal();
  run.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  const std::string metrics = (path / "metrics.jsonl").string();
  if (!Exists(metrics)) {
    return Fail(ErrorKind::kIo, folder, "no metrics.jsonl", "the folder of a run",
                "make one with heed train DATA --out FOLDER");
  }
  HEED_ASSIGN(run.rows, ReadMetrics(metrics));
  if (run.rows.empty()) return Fail(ErrorKind::kFormat, metrics, "no rows", "a logged iteration");
  HEED_ASSIGN(run.settings, ReadSettings((path / "config.toml").string(), &run.data));
  HEED_ASSIGN(run.model, ReadConfig((path / "config.json").string()));
  run.updates = UpdatesOf((path / "checkpoint" / "state.safetensors").string());
  return run;
}

RunFigures FiguresOf(const RunRecord& run) {
  RunFigures figures;
  if (run.model) {
    figures.parameters = ParameterCount(*run.model);
    figures.cache_elements = 2 * run.model->n_layer * run.model->n_kv_head * run.model->head_dim;
  }
  const MetricsRow& last = run.rows.back();
  figures.tokens = last.tokens;
  if (run.model) {
    figures.updates = std::max(last.iter, run.updates);
    if (last.iter > 0) figures.tokens = last.tokens / last.iter * figures.updates;
  }
  figures.elapsed_s = last.elapsed_s;
  figures.train_loss = MeanTrainLoss(run.rows);
  std::vector<double> speeds;
  for (const MetricsRow& row : run.rows) {
    if (row.tokens_per_second > 0) speeds.push_back(row.tokens_per_second);
    if (row.val_floor) figures.floor = row.val_floor;
    // What fresh weights lose says nothing of a run that went on.
    if (!row.val_loss || (row.tokens == 0 && figures.tokens > 0)) continue;
    figures.val_loss = row.val_loss;
    if (figures.best_val_loss && *figures.best_val_loss <= *row.val_loss) continue;
    figures.best_val_loss = row.val_loss;
    figures.best_iter = row.iter;
  }
  if (!speeds.empty()) {
    const auto middle = speeds.begin() + static_cast<ptrdiff_t>(speeds.size() / 2);
    std::ranges::nth_element(speeds, middle);
    figures.tokens_per_second = *middle;
  }
  return figures;
}

std::vector<Difference> DifferencesOf(std::span<const RunRecord> runs) {
  std::vector<Difference> differences;
  if (runs.empty()) return differences;
  for (const auto& [setting, unused] : runs[0].settings) {
    Difference difference{setting, {}};
    for (const RunRecord& run : runs) {
      const auto at =
          std::ranges::find(run.settings, setting, [](const auto& s) { return s.first; });
      if (at != run.settings.end()) difference.values.push_back(at->second);
    }
    const bool everywhere = difference.values.size() == runs.size();
    const bool equal = std::ranges::count(difference.values, difference.values[0]) ==
                       static_cast<ptrdiff_t>(runs.size());
    if (everywhere && !equal) differences.push_back(std::move(difference));
  }
  return differences;
}

std::string EffectOf(const RunRecord& run, const RunRecord& other) {
  const RunFigures a = FiguresOf(other), b = FiguresOf(run);
  std::string text = fmt::format("{} beside {}: ", run.name, other.name);
  if (run.data != other.data) {
    return text + "trained on different texts, so their losses do not compare";
  }
  if (!a.val_loss || !b.val_loss) {
    text += "training loss (mean) " + Change(a.train_loss, b.train_loss) +
            ", for not both have a held-out one yet";
  } else {
    text += "held-out loss " + Change(*a.val_loss, *b.val_loss);
    const int64_t common = std::min(a.tokens, b.tokens);
    const MetricsRow *at = EvaluatedBy(other, common), *bt = EvaluatedBy(run, common);
    if (a.tokens != b.tokens && at != nullptr && at->tokens > 0 && bt != nullptr &&
        at->tokens == bt->tokens) {
      text += fmt::format("; after {} tokens each {}", FormatQuantity(double(at->tokens)),
                          Change(*at->val_loss, *bt->val_loss));
    }
    const auto passed = std::ranges::find_if(run.rows, [&](const MetricsRow& row) {
      return row.val_loss && *row.val_loss <= *a.val_loss;
    });
    if (passed != run.rows.end() && passed->tokens < b.tokens) {
      text += "; it passed the other's last loss after " +
              (run.model ? fmt::format("{} of {} updates", FormatCount(passed->iter),
                                       FormatCount(b.updates))
                         : fmt::format("{} of {} tokens", FormatCount(passed->tokens),
                                       FormatCount(b.tokens)));
    }
  }
  if (a.tokens_per_second > 0 && b.tokens_per_second > 0) {
    text += "; " + SpeedText(b.tokens_per_second / a.tokens_per_second);
  }
  if (a.cache_elements > 0 && b.cache_elements > 0 && a.cache_elements != b.cache_elements) {
    text += fmt::format("; a key/value cache of {} bytes a position in place of {}",
                        4 * b.cache_elements, 4 * a.cache_elements);
  }
  return text + ".";
}

}  // namespace heed
