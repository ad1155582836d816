#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/fields_text.h"
#include "base/memory.h"
#include "baseline/open.h"
#include "data/dataset.h"
#include "infer/sampler.h"
#include "model/folder.h"
#include "report/heatmap.h"
#include "text/tokenizer_file.h"

namespace heed {
namespace {

constexpr size_t kMostPositions = 28;      // of a map
constexpr int64_t kAblationTokens = 2049;  // of held-out text
constexpr int64_t kDefaultBatch = 12;

// A setting of the run as a number, or `otherwise`.
template <class T>
T SettingOr(const RunRecord& run, std::string_view name, T otherwise) {
  const auto at = std::ranges::find(run.settings, name, [](const auto& s) { return s.first; });
  T value = otherwise;
  if (at != run.settings.end() && !ParseField(at->first, at->second, &value)) return otherwise;
  return value;
}

// Held-out tokens of what the run was trained on. Errors: as OpenData; a task that is not text.
Result<std::vector<int32_t>> HeldOutTokens(const RunRecord& run, const std::string& folder,
                                           int64_t block_size) {
  DataOptions options;
  options.sources = run.data;
  options.val_fraction = SettingOr(run, "val_fraction", options.val_fraction);
  options.block_size = block_size;
  HEED_ASSIGN(auto tokenizer, OpenTokenizer(folder));
  HEED_ASSIGN(const DataSet data, OpenData(options, std::move(tokenizer)));
  const auto* text = dynamic_cast<const TextBatches*>(data.batches.get());
  if (text == nullptr) return BadRequest("data", "a task that is not text", "text");
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(kAblationTokens, text->val_tokens())));
  text->ReadHeldOut(0, static_cast<int64_t>(tokens.size()), tokens.data());
  return tokens;
}

Result<ReportedHeads> ReportHeads(const LanguageModel& model, const ReportedRun& run,
                                  const ReportRequest& request) {
  const Tokenizer& tokenizer = **model.tokenizer;
  const std::string text =
      request.text.empty() ? run.sheet[0].prompt + run.sheet[0].text : request.text;
  HEED_ASSIGN(std::vector<int32_t> tokens, tokenizer.Encode(text, {"--text"}));
  const auto block = static_cast<size_t>(model.gpt->config().block_size);
  tokens.resize(std::min({tokens.size(), kMostPositions, block}));
  ReportedHeads heads;
  for (const int32_t token : tokens) {
    heads.labels.push_back(TokenLabel(tokenizer.TokenBytes(token), /*utf8=*/true));
  }
  HEED_ASSIGN(heads.maps, ReadAttentionMaps(*model.gpt, tokens));
  if (!request.ablate) {
    heads.no_ablation = "not asked for";
    return heads;
  }
  const auto held_out =
      HeldOutTokens(run.record, run.record.folder, model.gpt->config().block_size);
  if (!held_out) {
    heads.no_ablation = held_out.error().Message();
    return heads;
  }
  HEED_ASSIGN(heads.ablation, AblateHeads(model.gpt.get(), *held_out));
  return heads;
}

}  // namespace

Result<ReportedRun> ReportRun(const std::string& folder, const ReportRequest& request,
                              const std::function<void(const std::string&)>& on_step) {
  ReportedRun run;
  HEED_ASSIGN(run.record, ReadRun(folder));
  HEED_ASSIGN(const LanguageModel model, OpenModel(folder, SimdKernels(), Weights::kOwned));
  if (!model.tokenizer) return tl::make_unexpected(model.tokenizer.error());
  std::error_code error;
  const auto size =
      std::filesystem::file_size(std::filesystem::path(folder) / "model.safetensors", error);
  if (!error) run.weight_file_bytes = static_cast<int64_t>(size);

  for (const std::string& prompt : request.prompts) {
    HEED_TRY((*model.tokenizer)->Encode(prompt, {"--prompt"}));
  }
  for (const double temperature : request.temperatures) {
    HEED_TRY(SamplingSettings{temperature}.Validate());
  }
  on_step("samples of " + folder);
  SheetRequest sheet{request.prompts, request.temperatures, request.max_tokens, request.seed};
  if (sheet.prompts.empty()) {
    sheet.prompts = {SettingOr<std::string>(run.record, "sample_prompt", "\n")};
  }
  HEED_ASSIGN(run.sheet, MakeSheet(model, sheet));
  if (!model.gpt) return run;

  const ModelConfig& config = model.gpt->config();
  const int64_t batch = SettingOr(run.record, "batch_size", kDefaultBatch);
  HEED_ASSIGN(run.ledger, MakeLedger({config, batch, config.block_size}, ReadMachineMemory()));
  HEED_ASSIGN(run.one, MakeLedger({config, 1, config.block_size}, ReadMachineMemory()));
  if (config.n_layer == 0 || run.sheet.empty()) return run;
  on_step("heads of " + folder);
  HEED_ASSIGN(run.heads, ReportHeads(model, run, request));
  return run;
}

}  // namespace heed
