#include "train/checkpoint.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include "base/plural.h"
#include "io/safetensors.h"
#include "model/folder.h"

namespace heed {
namespace {

namespace fs = std::filesystem;

std::string FileOf(const std::string& folder) {
  return (fs::path(folder) / "checkpoint" / "state.safetensors").string();
}

// Doubles are kept in their shortest form that reads back to the same bits.
template <class T>
Status ReadNumber(const SafetensorsFile& file, const std::string& where, const char* key,
                  T* value) {
  const auto entry = file.metadata().find(key);
  if (entry == file.metadata().end()) {
    return Fail(ErrorKind::kFormat, where, fmt::format("no {} in the metadata", key), "a number");
  }
  const std::string& text = entry->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Fail(ErrorKind::kFormat, where + ": " + key, text, "a number");
  }
  return {};
}

Status CopyBlock(const SafetensorsFile& file, const std::string& where, const std::string& name,
                 const Parameter& p, float* out) {
  const TensorEntry* entry = file.Find(name);
  if (entry == nullptr || entry->shape != p.shape || entry->dtype != DType::kF32) {
    return Fail(ErrorKind::kFormat, where,
                entry == nullptr ? "no tensor " + name : name + " of another shape",
                "the checkpoint of this run's model", "start the run again with --overwrite");
  }
  std::memcpy(out, file.Bytes(*entry).data(), entry->size);
  return {};
}

}  // namespace

Status SaveCheckpoint(const std::string& folder, const Gpt& model, Adamw* adamw,
                      const TrainState& state) {
  HEED_TRY(MakeFolder((fs::path(folder) / "checkpoint").string()));
  std::vector<TensorToWrite> tensors;
  for (const Parameter& p : model.parameters().all()) {
    tensors.push_back({p.name, DType::kF32, p.shape, p.data});
    tensors.push_back({"m." + p.name, DType::kF32, p.shape, adamw->m(p)});
    tensors.push_back({"v." + p.name, DType::kF32, p.shape, adamw->v(p)});
  }
  const std::map<std::string, std::string> metadata = {
      {"iteration", fmt::format("{}", state.iteration)},
      {"seed", fmt::format("{}", state.seed)},
      {"data_fingerprint", fmt::format("{}", state.data_fingerprint)},
      {"elapsed_s", fmt::format("{}", state.elapsed_s)},
      {"best_val_loss", fmt::format("{}", state.best_val_loss)}};
  return WriteSafetensors(FileOf(folder), tensors, metadata, /*overwrite=*/true);
}

Result<TrainState> LoadCheckpoint(const std::string& folder, Gpt* model, Adamw* adamw) {
  const std::string path = FileOf(folder);
  std::error_code error;
  if (!fs::exists(path, error)) {
    return Fail(ErrorKind::kIo, folder, "no checkpoint", "checkpoint/state.safetensors in it",
                "give the folder of a run, or start it again with --overwrite");
  }
  HEED_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  TrainState state;
  HEED_TRY(ReadNumber(file, path, "iteration", &state.iteration));
  HEED_TRY(ReadNumber(file, path, "seed", &state.seed));
  HEED_TRY(ReadNumber(file, path, "data_fingerprint", &state.data_fingerprint));
  HEED_TRY(ReadNumber(file, path, "elapsed_s", &state.elapsed_s));
  HEED_TRY(ReadNumber(file, path, "best_val_loss", &state.best_val_loss));
  const size_t tensors = 3 * model->parameters().all().size();
  if (file.tensors().size() != tensors) {
    return Fail(
        ErrorKind::kFormat, path,
        fmt::format("{} tensor{}", file.tensors().size(), Plural(std::ssize(file.tensors()))),
        fmt::format("{}: the checkpoint of this run's model", tensors),
        "start the run again with --overwrite");
  }
  for (const Parameter& p : model->parameters().all()) {
    HEED_TRY(CopyBlock(file, path, p.name, p, p.data));
    HEED_TRY(CopyBlock(file, path, "m." + p.name, p, adamw->m(p)));
    HEED_TRY(CopyBlock(file, path, "v." + p.name, p, adamw->v(p)));
  }
  adamw->set_steps(state.iteration);
  return state;
}

}  // namespace heed
