#include "verify/diagnose/catalogue.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/fields_text.h"
#include "base/nearest.h"
#include "verify/diagnose/attention_diagnosis.h"
#include "verify/diagnose/attention_faults.h"
#include "verify/diagnose/loss_diagnosis.h"
#include "verify/diagnose/mlp_diagnosis.h"
#include "verify/diagnose/model_diagnosis.h"
#include "verify/diagnose/model_faults.h"
#include "verify/diagnose/norm_diagnosis.h"
#include "verify/diagnose/optimizer_diagnosis.h"
#include "verify/diagnose/sampler_diagnosis.h"

namespace heed {
namespace {

Result<Diagnosis> DiagnoseAgainstFolder(const TensorFile& dump, const std::string& where,
                                        const SettingTexts& given) {
  const auto folder = given.find("model");
  if (folder == given.end()) {
    return BadRequest("--model", "nothing", "the folder of the model that the logits are of");
  }
  return DiagnoseModel(dump, where, given, folder->second);
}

constexpr DumpKind kKinds[] = {{"attention", DiagnoseAttention, AttentionFaults},
                               {"layernorm", DiagnoseNorm, NormFaults},
                               {"rmsnorm", DiagnoseNorm, NormFaults},
                               {"mlp", DiagnoseMlp, MlpFaults},
                               {"model", DiagnoseAgainstFolder, ModelFaults},
                               {"loss", DiagnoseLoss, LossFaults},
                               {"sampler", DiagnoseSampler, SamplerFaults},
                               {"optimizer", DiagnoseOptimizer, OptimizerFaults}};

bool KnowsAttention(const FaultKind& fault) {
  return std::ranges::any_of(AttentionFaults(),
                             [&](const FaultKind& other) { return other.id == fault.id; });
}

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

std::string FaultPage(const FaultKind& fault, bool picture) {
  std::string page = fmt::format("# {}\n\nWrong: {}.\n\n", fault.id, fault.what);
  if (picture) {
    page +=
        fmt::format("![{}](pictures/{}.svg)\n\n",
                    KnowsAttention(fault) ? "Weights of one head, and the error of y"
                                          : "The result, right and with the fault, and the error",
                    fault.id);
  }
  return page + fmt::format(
                    "Repair: {}.\n\n```py\n{}\n```\n\n```cpp\n{}\n```\n\nHow to tell: {}.\n\n"
                    "[All faults](README.md)\n",
                    fault.repair, fault.torch, fault.cpp, fault.test);
}

std::string FaultIndex() {
  std::string page =
      "# Faults\n\nWritten from what `heed diagnose` knows; `--explain ID` prints the same. "
      "Pictures "
      "show six positions: one\nhead's weights, queries down and keys across, and the size of the "
      "error of y, positions down and channels across; red\nis what is not a number. Of other "
      "kinds they "
      "show the sizes of the result, right and with the fault, and of the\nerror, or the error "
      "alone "
      "where it is small; of a loss the weight of each label, positions down and vocabulary "
      "across.\n";
  const FaultKind* listed = nullptr;
  for (const DumpKind& kind : kKinds) {
    const std::span<const FaultKind> faults = kind.faults();
    // Layer norm and RMS norm share one list.
    if (faults.data() == listed) continue;
    listed = faults.data();
    page += fmt::format("\n## {}\n\n", kind.name);
    for (const FaultKind& fault : faults) {
      page += fmt::format("- [{}]({}.md): {}\n", fault.id, fault.id, fault.what);
    }
  }
  return page;
}

Result<const FaultKind*> FindFault(const std::string& id) {
  std::vector<std::string> names;
  for (const DumpKind& kind : kKinds) {
    for (const FaultKind& fault : kind.faults()) {
      if (fault.id == id) return &fault;
      names.emplace_back(fault.id);
    }
  }
  const std::string hint = Hint(id, names);
  return BadRequest("--explain", "'" + id + "'", "the identifier of a fault",
                    hint.empty() ? "--explain all lists them" : hint);
}

}  // namespace heed
