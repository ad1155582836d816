#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/plural.h"
#include "base/quote.h"
#include "io/file.h"
#include "tensor/shape.h"

namespace heed {
namespace {

using Json = nlohmann::json;

constexpr size_t kHeaderCap = 100'000'000;
constexpr size_t kMaxRank = 64;
constexpr std::string_view kMetadataKey = "__metadata__";

// Follows the header's events and refuses what has no place in it. nlohmann's own tree would keep
// duplicates silently and grow with any nesting.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(std::string where) : where_(std::move(where)) {}

  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  Error error;

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTensorValue:
        place_ = Place::kTensor;
        return true;
      case Place::kMetadataValue:
        place_ = Place::kMetadata;
        return true;
      default:
        return Unexpected("an object");
    }
  }

  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kEnd;
      return true;
    }
    if (place_ == Place::kTensor) {
      if (!dtype_) return Missing("dtype");
      if (!shape_) return Missing("shape");
      if (!offsets_) return Missing("data_offsets");
      if (!AddTensor()) return false;
    }
    place_ = Place::kTop;
    return true;
  }

  bool key(std::string& name) override {
    switch (place_) {
      case Place::kTop:
        if (!names_.insert(name).second) return Refuse("two entries " + Quoted(name), "one");
        name_ = name;
        dtype_.reset();
        shape_.reset();
        offsets_.reset();
        place_ = name == kMetadataKey ? Place::kMetadataValue : Place::kTensorValue;
        return true;
      case Place::kMetadata:
        name_ = name;
        if (metadata.contains(name)) return Refuse("two metadata keys " + Quoted(name), "one");
        place_ = Place::kMetadataString;
        return true;
      default:
        return FieldKey(name);
    }
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadataString) {
      metadata.emplace(name_, text);
      place_ = Place::kMetadata;
      return true;
    }
    if (place_ != Place::kDtype) return Unexpected("a string");
    DType dtype;
    if (!ValueOf(text, &dtype)) {
      return Refuse("dtype " + Quoted(text),
                    "F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 or BOOL");
    }
    dtype_ = dtype;
    place_ = Place::kTensor;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kShape) {
      shape_.emplace();
      place_ = Place::kShapeItem;
      return true;
    }
    if (place_ == Place::kOffsets) {
      offsets_.emplace();
      place_ = Place::kOffsetsItem;
      return true;
    }
    return Unexpected("an array");
  }

  bool end_array() override {
    if (place_ == Place::kOffsetsItem && offsets_->size() != 2) {
      return Refuse(fmt::format("{} data_offsets", offsets_->size()), "2");
    }
    place_ = Place::kTensor;
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kShapeItem && place_ != Place::kOffsetsItem) {
      return Unexpected("a number");
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Refuse(fmt::format("the size {}", value), "at most 2^63 - 1");
    }
    std::vector<int64_t>& list = place_ == Place::kShapeItem ? *shape_ : *offsets_;
    if (list.size() == kMaxRank) return Refuse("more than 64 dimensions", "at most 64");
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool number_integer(int64_t value) override { return Unexpected(fmt::format("{}", value)); }
  bool number_float(double, const std::string&) override { return Unexpected("a fraction"); }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool binary(Json::binary_t&) override { return Unexpected("binary"); }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    error = Error{ErrorKind::kFormat, where_,
                  fmt::format("a header that stops being JSON at byte {}", position),
                  "JSON in UTF-8", "the file may be damaged; fetch or save it again"};
    return false;
  }

 private:
  enum class Place {
    kStart,
    kTop,             // between entries
    kTensorValue,     // behind a tensor's name
    kTensor,          // between a tensor's fields
    kDtype,           // behind "dtype"
    kShape,           // behind "shape"
    kShapeItem,       // inside its array
    kOffsets,         // behind "data_offsets"
    kOffsetsItem,     // inside its array
    kMetadataValue,   // behind "__metadata__"
    kMetadata,        // between its keys
    kMetadataString,  // behind a key
    kEnd,
  };

  bool Refuse(std::string found, std::string expected) {
    const std::string where = names_.empty() ? where_ : where_ + ": entry " + Quoted(name_);
    error = Error{ErrorKind::kFormat, where, std::move(found), std::move(expected), ""};
    return false;
  }

  bool Unexpected(const std::string& found) {
    switch (place_) {
      case Place::kDtype:
        return Refuse(found + " as dtype", "a string");
      case Place::kShape:
      case Place::kShapeItem:
        return Refuse(found + " in shape", "an array of sizes");
      case Place::kOffsets:
      case Place::kOffsetsItem:
        return Refuse(found + " in data_offsets", "an array of two positions");
      case Place::kMetadataString:
        return Refuse(found + " as metadata", "a string");
      default:
        return Refuse(found, "an object");
    }
  }

  bool Missing(const char* field) {
    return Refuse(std::string("no ") + field, "dtype, shape and data_offsets");
  }

  bool FieldKey(const std::string& field) {
    const bool is_dtype = field == "dtype", is_shape = field == "shape";
    if (!is_dtype && !is_shape && field != "data_offsets") {
      return Refuse("the field " + Quoted(field), "dtype, shape and data_offsets");
    }
    if (is_dtype ? dtype_.has_value() : is_shape ? shape_.has_value() : offsets_.has_value()) {
      return Refuse("two fields " + Quoted(field), "one");
    }
    place_ = is_dtype ? Place::kDtype : is_shape ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool AddTensor() {
    const int64_t begin = (*offsets_)[0], end = (*offsets_)[1];
    if (begin > end) {
      return Refuse(fmt::format("data_offsets [{}, {}]", begin, end), "the begin before the end");
    }
    const std::optional<int64_t> count = ElementCount(*shape_);
    int64_t bytes = 0;
    if (!count || __builtin_mul_overflow(*count, SizeOf(*dtype_), &bytes)) {
      return Refuse("the shape " + ShapeText(*shape_), "a size below 2^63 bytes");
    }
    if (bytes != end - begin) {
      return Refuse(fmt::format("{} byte{}", end - begin, Plural(end - begin)),
                    fmt::format("{} for {} {}", bytes, NameOf(*dtype_), ShapeText(*shape_)));
    }
    tensors.push_back({name_, *dtype_, std::move(*shape_), static_cast<size_t>(begin),
                       static_cast<size_t>(bytes)});
    return true;
  }

  std::string where_;
  Place place_ = Place::kStart;
  std::set<std::string> names_;
  std::string name_;  // of the entry or metadata key at hand
  std::optional<DType> dtype_;
  std::optional<std::vector<int64_t>> shape_, offsets_;
};

// Sorts by place and checks that the tensors cover `size` bytes exactly.
Status CheckCover(std::vector<TensorEntry>* tensors, size_t size, const std::string& where) {
  std::ranges::stable_sort(*tensors, [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.size) < std::pair(b.begin, b.size);
  });
  size_t covered = 0;
  for (const TensorEntry& tensor : *tensors) {
    const std::string entry = where + ": entry " + Quoted(tensor.name);
    if (tensor.begin != covered) {
      return Fail(ErrorKind::kFormat, entry, fmt::format("bytes from {}", tensor.begin),
                  fmt::format("from {}, where the tensor before ends", covered));
    }
    if (tensor.size > size - covered) {
      return Fail(ErrorKind::kFormat, entry,
                  fmt::format("bytes up to {}", tensor.begin + tensor.size),
                  fmt::format("at most {}, the file's end", size),
                  "the file is cut short; fetch or save it again");
    }
    covered += tensor.size;
  }
  if (covered != size) {
    return Fail(
        ErrorKind::kFormat, where,
        fmt::format("{} byte{} after the last tensor", size - covered, Plural(size - covered)),
        "none", "the file is damaged or hides something; fetch or save it again");
  }
  return {};
}

// Of the given tensors, in the order in which they are written.
Result<std::string> Header(std::span<const TensorToWrite* const> tensors,
                           const std::map<std::string, std::string>& metadata,
                           const std::string& path) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata) {
    if (!IsUtf8(key) || !IsUtf8(value)) {
      return BadRequest(path, "metadata " + Quoted(key) + " that is not UTF-8", "UTF-8");
    }
  }
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  uint64_t at = 0;
  for (const TensorToWrite* tensor : tensors) {
    const std::string where = path + ": tensor " + Quoted(tensor->name);
    if (!IsUtf8(tensor->name)) return BadRequest(where, "a name that is not UTF-8", "UTF-8");
    if (tensor->name == kMetadataKey || header.contains(tensor->name)) {
      return BadRequest(where, "a name that is taken", "another name");
    }
    const std::optional<int64_t> count = ElementCount(tensor->shape);
    uint64_t bytes = 0, end = 0;
    if (!count || tensor->shape.size() > kMaxRank ||
        __builtin_mul_overflow(static_cast<uint64_t>(*count), SizeOf(tensor->dtype), &bytes) ||
        __builtin_add_overflow(at, bytes, &end) ||
        end > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return BadRequest(where, "the shape " + ShapeText(tensor->shape), "a size below 2^63 bytes");
    }
    header[tensor->name] = {
        {"dtype", NameOf(tensor->dtype)}, {"shape", tensor->shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kHeaderCap) {
    return BadRequest(path, fmt::format("a header of {} bytes", text.size()),
                      fmt::format("at most {}", kHeaderCap));
  }
  return text;
}

Status WriteTensor(const TensorToWrite& tensor, AtomicFile* file) {
  const size_t width = SizeOf(tensor.dtype);
  const size_t count = static_cast<size_t>(*ElementCount(tensor.shape));
  if (tensor.data != nullptr) {
    return file->Write({static_cast<const std::byte*>(tensor.data), count * width});
  }
  HEED_DCHECK(tensor.fill || count == 0);
  constexpr size_t kPiece = 1 << 17;  // elements
  std::vector<std::byte> piece(std::min(count, kPiece) * width);
  for (size_t first = 0; first < count; first += kPiece) {
    const std::span<std::byte> out(piece.data(), std::min(count - first, kPiece) * width);
    tensor.fill(static_cast<int64_t>(first), out);
    HEED_TRY(file->Write(out));
  }
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  HEED_ASSIGN(MappedFile mapped, MappedFile::Open(path));
  HEED_ASSIGN(SafetensorsFile file, Parse(mapped.bytes(), path));
  file.file_ = std::move(mapped);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::Parse(std::span<const std::byte> bytes,
                                               std::string where) {
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    return Fail(ErrorKind::kFormat, where,
                fmt::format("{} byte{}", bytes.size(), Plural(std::ssize(bytes))),
                "a safetensors file, of at least 10 bytes");
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  bytes = bytes.subspan(sizeof(length));
  if (length > kHeaderCap || length > bytes.size() || length < 2 ||
      bytes[0] != static_cast<std::byte>('{')) {
    return Fail(ErrorKind::kFormat, where, "no safetensors header at its start",
                "a length up to 100 MB, then JSON", "the file is cut short or of another format");
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()), length);
  // nlohmann takes a zero byte for the end of its input.
  if (header.find('\0') != std::string_view::npos) {
    return Fail(ErrorKind::kFormat, where, "a zero byte in the header", "JSON in UTF-8");
  }
  HeaderReader reader(where);
  if (!Json::sax_parse(header, &reader)) return tl::make_unexpected(std::move(reader.error));

  SafetensorsFile file;
  file.data_ = bytes.subspan(length);
  HEED_TRY(CheckCover(&reader.tensors, file.data_.size(), where));
  file.where_ = std::move(where);
  file.tensors_ = std::move(reader.tensors);
  file.metadata_ = std::move(reader.metadata);
  return file;
}

Result<std::vector<float>> SafetensorsFile::Floats(std::string_view name) const {
  HEED_ASSIGN(const TensorEntry* entry, RequireEntry(tensors_, name, where_));
  return DecodeFloats<float>(*entry, Bytes(*entry), where_);
}

Result<std::vector<double>> SafetensorsFile::Doubles(std::string_view name) const {
  HEED_ASSIGN(const TensorEntry* entry, RequireEntry(tensors_, name, where_));
  return DecodeFloats<double>(*entry, Bytes(*entry), where_);
}

Result<std::vector<int64_t>> SafetensorsFile::Integers(std::string_view name) const {
  HEED_ASSIGN(const TensorEntry* entry, RequireEntry(tensors_, name, where_));
  return DecodeIntegers(*entry, Bytes(*entry), where_);
}

Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                        const std::map<std::string, std::string>& metadata, bool overwrite) {
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& tensor : tensors) order.push_back(&tensor);
  std::ranges::stable_sort(
      order, [](const auto* a, const auto* b) { return SizeOf(a->dtype) > SizeOf(b->dtype); });
  HEED_ASSIGN(const std::string header, Header(order, metadata, path));
  const uint64_t length = header.size();
  HEED_ASSIGN(AtomicFile file, AtomicFile::Create(path, overwrite));
  HEED_TRY(file.Write(std::as_bytes(std::span(&length, 1))));
  HEED_TRY(file.Write(header));
  for (const TensorToWrite* tensor : order) HEED_TRY(WriteTensor(*tensor, &file));
  return file.Commit();
}

}  // namespace heed
