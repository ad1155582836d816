// All kinds of dumps and all known faults.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "inspect/attention_settings.h"
#include "io/tensor_file.h"
#include "verify/diagnose/diagnosis.h"

namespace heed {

// What a dump holds, by its setting `kind`.
struct DumpKind {
  std::string_view name;
  Result<Diagnosis> (*diagnose)(const TensorFile& dump, const std::string& where,
                                const SettingTexts& given);
  std::span<const FaultKind> (*faults)();
};

std::span<const DumpKind> DumpKinds();

// The kind that the file or `given`, which wins, states; attention when neither does. Error
// (kRequest): an unknown one, with the nearest.
Result<const DumpKind*> KindOf(const TensorFile& dump, const std::string& where,
                               const SettingTexts& given);

// A fault as a page of Markdown, with a picture in pictures/ID.svg; and the page that lists all.
std::string FaultPage(const FaultKind& fault, bool picture);
std::string FaultIndex();

// Error (kRequest): no such identifier, with the nearest.
Result<const FaultKind*> FindFault(const std::string& id);

}  // namespace heed
