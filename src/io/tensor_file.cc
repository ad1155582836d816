#include "io/tensor_file.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace heed {
namespace {

// The one number of a tensor of shape [].
Result<std::string> ScalarText(const TensorFile& file, const TensorEntry& entry) {
  if (entry.dtype == DType::kF32) {
    HEED_ASSIGN(const std::vector<float> value, file.Floats(entry.name));
    return fmt::format("{}", value.front());
  }
  if (IsFloat(entry.dtype)) {
    HEED_ASSIGN(const std::vector<double> value, file.Doubles(entry.name));
    return fmt::format("{}", value.front());
  }
  HEED_ASSIGN(const std::vector<int64_t> value, file.Integers(entry.name));
  if (entry.dtype == DType::kBool) return value.front() != 0 ? "true" : "false";
  return fmt::format("{}", value.front());
}

}  // namespace

Result<TensorFile> TensorFile::Open(const std::string& path) {
  HEED_ASSIGN(MappedFile mapped, MappedFile::Open(path));
  HEED_ASSIGN(TensorFile file, Parse(mapped.bytes(), path));
  file.mapped_ = std::move(mapped);
  return file;
}

Result<TensorFile> TensorFile::Parse(std::span<const std::byte> bytes, const std::string& where) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const bool numpy = text.starts_with("PK") || text.starts_with("\x93NUMPY");
  const bool header = text.size() > 8 && text[8] == '{';
  // A header's length may begin with the bytes of a pickle or a zip, but neither has a brace there.
  if (!header && IsPickle(bytes)) return PickleError(where);
  std::optional<TensorFile> file;
  if (header || (!numpy && where.ends_with(".safetensors"))) {
    HEED_ASSIGN(SafetensorsFile parsed, SafetensorsFile::Parse(bytes, where));
    file = TensorFile(std::move(parsed));
    file->settings_ = std::get<SafetensorsFile>(file->file_).metadata();
  } else if (numpy) {
    HEED_ASSIGN(NpzFile parsed, NpzFile::Parse(bytes, where));
    file = TensorFile(std::move(parsed));
    file->settings_ = std::get<NpzFile>(file->file_).strings();
  } else {
    return Fail(ErrorKind::kFormat, where, "a file of another format",
                "a .safetensors or .npz file");
  }
  for (const TensorEntry& entry : file->tensors()) {
    if (!entry.shape.empty()) continue;
    HEED_ASSIGN(std::string value, ScalarText(*file, entry));
    file->settings_.emplace(entry.name, std::move(value));
  }
  return std::move(*file);
}

const std::vector<TensorEntry>& TensorFile::tensors() const {
  return std::visit(
      [](const auto& file) -> const auto& { return file.tensors(); }, file_);
}

Result<std::vector<float>> TensorFile::Floats(std::string_view name) const {
  return std::visit([name](const auto& file) { return file.Floats(name); }, file_);
}

Result<std::vector<double>> TensorFile::Doubles(std::string_view name) const {
  return std::visit([name](const auto& file) { return file.Doubles(name); }, file_);
}

Result<std::vector<int64_t>> TensorFile::Integers(std::string_view name) const {
  return std::visit([name](const auto& file) { return file.Integers(name); }, file_);
}

}  // namespace heed
