#include "verify/diagnose/catalogue.h"

#include <fmt/format.h>

#include "base/fields_text.h"
#include "base/nearest.h"
#include "verify/diagnose/attention_diagnosis.h"
#include "verify/diagnose/attention_faults.h"
#include "verify/diagnose/loss_diagnosis.h"
#include "verify/diagnose/mlp_diagnosis.h"
#include "verify/diagnose/norm_diagnosis.h"
#include "verify/diagnose/optimizer_diagnosis.h"
#include "verify/diagnose/sampler_diagnosis.h"

namespace heed {
namespace {

constexpr DumpKind kKinds[] = {{"attention", DiagnoseAttention, AttentionFaults},
                               {"layernorm", DiagnoseNorm, NormFaults},
                               {"rmsnorm", DiagnoseNorm, NormFaults},
                               {"mlp", DiagnoseMlp, MlpFaults},
                               {"loss", DiagnoseLoss, LossFaults},
                               {"sampler", DiagnoseSampler, SamplerFaults},
                               {"optimizer", DiagnoseOptimizer, OptimizerFaults}};

std::string Hint(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(word, known);
  return nearest.empty() ? "" : "did you mean " + nearest + "?";
}

}  // namespace

std::span<const DumpKind> DumpKinds() { return kKinds; }

Result<const DumpKind*> KindOf(const TensorFile& dump, const std::string& where,
                               const SettingTexts& given) {
  SettingTexts texts = given;
  texts.insert(dump.settings().begin(), dump.settings().end());
  const auto stated = texts.find("kind");
  if (stated == texts.end()) return &kKinds[0];
  std::vector<std::string> names;
  for (const DumpKind& kind : kKinds) {
    if (kind.name == stated->second) return &kind;
    names.emplace_back(kind.name);
  }
  return BadRequest(where + ": kind", "'" + stated->second + "'", JoinNames(names),
                    Hint(stated->second, names));
}

Result<const FaultKind*> FindFault(const std::string& id) {
  std::vector<std::string> names;
  for (const DumpKind& kind : kKinds) {
    for (const FaultKind& fault : kind.faults()) {
      if (fault.id == id) return &fault;
      names.emplace_back(fault.id);
    }
  }
  return BadRequest(
      "--explain", "'" + id + "'", "the identifier of a fault",
      names.empty() || !Hint(id, names).empty() ? Hint(id, names) : "--explain all lists them");
}

}  // namespace heed
