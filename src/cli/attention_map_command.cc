#include "cli/attention_map_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/mapped_file.h"
#include "base/plural.h"
#include "cli/json.h"
#include "eval/ablation.h"
#include "inspect/attention_map.h"
#include "model/load.h"
#include "report/format.h"
#include "report/heatmap.h"
#include "report/table.h"
#include "text/utf8.h"

namespace heed {
namespace {

// What fits on a line of 100 columns, two a key, behind labels of ten.
constexpr size_t kMostPositions = 44;
constexpr const char* kCaution =
    "A map says where a head looks, not why, nor that it matters: other heads and the residual "
    "path carry the rest. What a head is worth shows when it is taken away: --ablate.";

class MapRun {
 public:
  MapRun(Session& session, const AttentionMapSettings& settings)
      : session_(session), settings_(settings) {}

  Result<Verdict> Run(const std::string& model, const std::string& out) {
    HEED_ASSIGN(LoadedModel loaded,
                LoadModel(model, SimdKernels(), "",
                          settings_.ablate ? Weights::kOwned : Weights::kInPlace));
    if (!loaded.tokenizer) return tl::make_unexpected(loaded.tokenizer.error());
    model_ = std::move(loaded.model);
    tokenizer_ = std::move(*loaded.tokenizer);
    HEED_TRY(CheckChoice());
    HEED_TRY(ReadText());
    HEED_ASSIGN(maps_, ReadAttentionMaps(*model_, Shown()));
    if (settings_.ablate) {
      Progress progress(session_.terminal, "without each head", "heads",
                        maps_.n_layer * maps_.n_head);
      HEED_ASSIGN(ablation_, AblateHeads(model_.get(), tokens_,
                                         [&](int64_t head) { progress.Update(head, {}); }));
      progress.Erase();
    }
    if (!out.empty()) HEED_TRY(Write(out));
    HEED_TRY(session_.terminal.Document(Document(out)));
    HEED_TRY(session_.terminal.Say(Text()));
    return Verdict::kDone;
  }

 private:
  Status CheckChoice() const {
    const ModelConfig& c = model_->config();
    for (const auto& [name, value, count] : {std::tuple("layer", settings_.layer, c.n_layer),
                                             std::tuple("head", settings_.head, c.n_head)}) {
      if (!session_.options.Given(name) || (value >= 0 && value < count)) continue;
      return BadRequest(fmt::format("--{}", name), fmt::format("{}", value),
                        fmt::format("0 to {}", count - 1));
    }
    return {};
  }

  Status ReadText() {
    if (settings_.text.empty() == settings_.text_file.empty()) {
      return BadRequest("--text, --text-file", settings_.text.empty() ? "neither" : "both",
                        "one of them");
    }
    std::string text = settings_.text;
    TextPlace place{"--text"};
    if (text.empty()) {
      HEED_ASSIGN(const MappedFile file, MappedFile::Open(settings_.text_file));
      text = file.text();
      place.name = settings_.text_file;
    }
    HEED_ASSIGN(tokens_, tokenizer_->Encode(text, place));
    if (tokens_.empty()) return BadRequest(place.name, "no tokens", "at least one");
    return {};
  }

  // The tokens that maps show: the beginning of the text, as far as the context and a line go.
  std::span<const int32_t> Shown() const {
    const size_t most = std::min(kMostPositions, static_cast<size_t>(model_->config().block_size));
    return std::span(tokens_).first(std::min(most, tokens_.size()));
  }

  std::vector<std::string> Labels(bool utf8) const {
    std::vector<std::string> labels;
    for (const int32_t token : Shown()) {
      labels.push_back(TokenLabel(tokenizer_->TokenBytes(token), utf8));
      std::ranges::replace(labels.back(), ' ', '_');
    }
    return labels;
  }

  bool Chosen(int64_t layer, int64_t head) const {
    return (settings_.layer < 0 || settings_.layer == layer) &&
           (settings_.head < 0 || settings_.head == head);
  }
  template <class F>
  void ForChosen(const F& f) const {
    for (int64_t layer = 0; layer < maps_.n_layer; ++layer) {
      for (int64_t head = 0; head < maps_.n_head; ++head) {
        if (Chosen(layer, head)) f(layer, head);
      }
    }
  }
  std::optional<double> Change(int64_t layer, int64_t head) const {
    if (!ablation_) return std::nullopt;
    return ablation_->change[static_cast<size_t>(layer * maps_.n_head + head)];
  }

  Status Write(const std::string& out) const {
    const bool overwrite = session_.globals.overwrite;
    if (out.ends_with(".safetensors")) return WriteAttentionMaps(out, maps_, Shown(), overwrite);
    std::vector<HeatMap> grid;
    ForChosen([&](int64_t layer, int64_t head) {
      std::string title = fmt::format("layer {} head {}", layer, head);
      if (const auto change = Change(layer, head)) {
        title += fmt::format(" ({:+.3f})", *change);
      }
      grid.push_back({title, maps_.T, maps_.Map(layer, head)});
    });
    const int64_t columns = std::min<int64_t>(static_cast<int64_t>(grid.size()), maps_.n_head);
    const std::string title =
        ablation_ ? "queries down (change of loss without it)" : "queries down, keys across";
    return WriteHeatMaps(grid, columns, Labels(/*utf8=*/true), title, out, overwrite);
  }

  std::string Document(const std::string& out) const {
    nlohmann::ordered_json heads = nlohmann::ordered_json::array();
    ForChosen([&](int64_t layer, int64_t head) {
      const HeadHabits habits = HabitsOf(maps_, layer, head);
      nlohmann::ordered_json entry = {{"layer", layer},
                                      {"head", head},
                                      {"entropy", habits.entropy},
                                      {"self", habits.self},
                                      {"previous", habits.previous},
                                      {"first", habits.first},
                                      {"distance", habits.distance}};
      if (const auto change = Change(layer, head)) entry["loss_change"] = *change;
      heads.push_back(std::move(entry));
    });
    nlohmann::ordered_json json = {{"tokens", std::vector(Shown().begin(), Shown().end())},
                                   {"heads", std::move(heads)}};
    if (ablation_) {
      json["loss"] = ablation_->loss;
      json["loss_tokens"] = ablation_->tokens;
    }
    if (!out.empty()) json["out"] = out;
    return DocumentText(json);
  }

  std::string Text() const {
    const size_t width = session_.terminal.text_width();
    std::string text;
    if (settings_.layer >= 0 && settings_.head >= 0) text += MapText(width) + "\n";
    text += HabitsTable(width);
    if (ablation_) {
      text += fmt::format("loss of the whole model: {:.4f} over {} token{}\n", ablation_->loss,
                          FormatCount(ablation_->tokens), Plural(ablation_->tokens));
    }
    if (Shown().size() < tokens_.size()) {
      text += fmt::format("maps are of the first {} of {} tokens\n", Shown().size(),
                          FormatCount(static_cast<int64_t>(tokens_.size())));
    }
    return text + "\n" + Wrap(kCaution, width, 0) + "\n";
  }

  // The chosen head, as many positions as a line has room for.
  std::string MapText(size_t width) const {
    const bool utf8 = LocaleIsUtf8();
    std::vector<std::string> labels = Labels(utf8);
    const size_t fit = std::min(labels.size(), kMostPositions - (100 - width) / 2);
    const std::string cut =
        fit < labels.size() ? fmt::format(", the first {} of {}", fit, labels.size()) : "";
    labels.resize(fit);
    return fmt::format("layer {}, head {}: queries down, keys across{}\n\n", settings_.layer,
                       settings_.head, cut) +
           DrawHeatMap({"", maps_.T, maps_.Map(settings_.layer, settings_.head)}, labels, utf8) +
           "\n" + Wrap(HeatMapLegend(utf8), width, 0) + "\n";
  }

  std::string HabitsTable(size_t width) const {
    Table table{"", {"head", "entropy", "distance", "self", "previous", "first"}, {}, {}};
    if (ablation_) table.head.emplace_back("change of loss without it");
    ForChosen([&](int64_t layer, int64_t head) {
      const HeadHabits h = HabitsOf(maps_, layer, head);
      table.rows.push_back({fmt::format("layer {} head {}", layer, head),
                            fmt::format("{:.3f}", h.entropy), fmt::format("{:.2f}", h.distance),
                            fmt::format("{:.3f}", h.self), fmt::format("{:.3f}", h.previous),
                            fmt::format("{:.3f}", h.first)});
      if (const auto change = Change(layer, head)) {
        table.rows.back().push_back(fmt::format("{:+.4f}", *change));
      }
    });
    return TableText(table, width);
  }

  Session& session_;
  const AttentionMapSettings& settings_;
  std::unique_ptr<Gpt> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<int32_t> tokens_;
  AttentionMaps maps_;
  std::optional<HeadAblation> ablation_;
};

}  // namespace

Result<Verdict> ShowAttentionMaps(Session& session, const AttentionMapSettings& settings,
                                  const std::string& model, const std::string& out) {
  return MapRun(session, settings).Run(model, out);
}

}  // namespace heed
