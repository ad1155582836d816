#include "io/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>
#include <type_traits>

#include "base/check.h"
#include "base/plural.h"
#include "base/quote.h"
#include "io/file.h"
#include "tensor/shape.h"

namespace heed {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kVersion = 3;
constexpr size_t kAlignment = 32;
constexpr int64_t kMostAlignment = 1 << 20;
constexpr size_t kMostDimensions = 4;
constexpr uint64_t kMostValues = 1 << 26;  // in one list: a byte of the file may become eight
const char* const kAlignmentKey = "general.alignment";

// The format's numbers for the types of values.
enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// Bytes of a number of any value; 0 for what has another size, or numbers that are refused.
constexpr size_t PlainBytes(uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
      return 1;
    case kUint16:
    case kInt16:
      return 2;
    case kUint32:
    case kInt32:
    case kFloat32:
      return 4;
    case kInt64:
    case kFloat64:
      return 8;
    default:
      return 0;
  }
}

size_t AlignUp(size_t at, size_t alignment) { return (at + alignment - 1) / alignment * alignment; }

// Takes one thing after the other from a file's bytes.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}

  size_t at() const { return at_; }

  tl::unexpected<Error> Bad(std::string found, std::string expected, std::string hint = "") const {
    return Fail(ErrorKind::kFormat, where_, std::move(found), std::move(expected), std::move(hint));
  }

  template <class T>
  Result<T> Take() {
    if (bytes_.size() - at_ < sizeof(T)) return CutShort();
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  Result<std::string_view> TakeString() {
    HEED_ASSIGN(const uint64_t length, Take<uint64_t>());
    if (length > bytes_.size() - at_) return CutShort();
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return text;
  }

  // A count of things that take at least `least` bytes each, so that none can be made up.
  Result<uint64_t> TakeCount(size_t least, const char* what) {
    HEED_ASSIGN(const uint64_t count, Take<uint64_t>());
    if (count > (bytes_.size() - at_) / least) {
      return Bad(fmt::format("{} {}", count, what), "no more than the file has bytes for",
                 "the file is damaged");
    }
    return count;
  }

  Result<GgufValue> TakeValue(const std::string& key) {
    HEED_ASSIGN(const uint32_t type, Take<uint32_t>());
    return type == kArray ? TakeArray(key) : TakePlain(type, key);
  }

  // The bytes of a value, which are checked but not kept.
  Result<std::span<const std::byte>> SkipValue(const std::string& key) {
    const size_t begin = at_;
    HEED_ASSIGN(const uint32_t type, Take<uint32_t>());
    uint32_t plain = type;
    uint64_t count = 1;
    if (type == kArray) {
      HEED_ASSIGN(std::tie(plain, count), TakeArrayHead(key));
    }
    if (const size_t bytes = PlainBytes(plain); bytes > 0) {
      if ((bytes_.size() - at_) / bytes < count) return CutShort();
      at_ += bytes * count;
    } else {
      for (; count > 0; --count) HEED_TRY(SkipPlain(plain, key));
    }
    return bytes_.subspan(begin, at_ - begin);
  }

  // A string, or a list of them, as views of the file, from a value that was checked; false where
  // it is something else.
  bool TakeViews(std::string_view* text) {
    if (*Take<uint32_t>() != kString) return false;
    *text = *TakeString();
    return true;
  }
  bool TakeViews(std::vector<std::string_view>* texts) {
    if (*Take<uint32_t>() != kArray || *Take<uint32_t>() != kString) return false;
    texts->resize(*Take<uint64_t>());
    for (std::string_view& text : *texts) text = *TakeString();
    return true;
  }

 private:
  Result<GgufValue> TakePlain(uint32_t type, const std::string& key) {
    if (type == kString) {
      return TakeString().map([](std::string_view s) { return GgufValue(std::string(s)); });
    }
    if (type == kBool) return TakeBool(key).map([](int64_t b) { return GgufValue(b != 0); });
    if (type == kFloat32 || type == kFloat64) {
      return TakeFloat(type).map([](double x) { return GgufValue(x); });
    }
    return TakeInteger(type, key).map([](int64_t n) { return GgufValue(n); });
  }
  Status SkipPlain(uint32_t type, const std::string& key) {
    if (type == kString) return TakeString().map([](std::string_view) {});
    return TakePlain(type, key).map([](const GgufValue&) {});
  }

  tl::unexpected<Error> CutShort() const {
    return Bad("an end in the middle of the header", "a whole GGUF file",
               "the file is cut short; fetch or save it again");
  }

  // A float32 stands for the shortest decimal that rounds to it: 1e-05, not 9.9999997e-06.
  Result<double> TakeFloat(uint32_t type) {
    if (type == kFloat64) return Take<double>();
    HEED_ASSIGN(const float narrow, Take<float>());
    double wide = narrow;
    if (!std::isfinite(narrow)) return wide;
    const std::string text = fmt::format("{}", narrow);
    std::from_chars(text.data(), text.data() + text.size(), wide);
    return wide;
  }

  Result<int64_t> TakeBool(const std::string& key) {
    HEED_ASSIGN(const uint8_t value, Take<uint8_t>());
    if (value > 1) return Bad(fmt::format("{} as truth of {}", value, Quoted(key)), "0 or 1");
    return value;
  }

  template <class T>
  Result<int64_t> TakeAs() {
    return Take<T>().map([](T value) { return static_cast<int64_t>(value); });
  }

  Result<int64_t> TakeInteger(uint32_t type, const std::string& key) {
    switch (type) {
      case kUint8:
        return TakeAs<uint8_t>();
      case kInt8:
        return TakeAs<int8_t>();
      case kUint16:
        return TakeAs<uint16_t>();
      case kInt16:
        return TakeAs<int16_t>();
      case kUint32:
        return TakeAs<uint32_t>();
      case kInt32:
        return TakeAs<int32_t>();
      case kInt64:
        return TakeAs<int64_t>();
      case kUint64: {
        HEED_ASSIGN(const uint64_t value, Take<uint64_t>());
        if (value <= uint64_t{std::numeric_limits<int64_t>::max()}) {
          return static_cast<int64_t>(value);
        }
        return Bad(fmt::format("{} as {}", value, Quoted(key)), "a number below 2^63");
      }
      default:
        return Bad(fmt::format("type {} of the value {}", type, Quoted(key)), "0 to 12");
    }
  }

  template <class T, class TakeOne>
  Result<GgufValue> TakeList(uint64_t count, TakeOne take) {
    std::vector<T> values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      HEED_ASSIGN(T value, take());
      values.push_back(std::move(value));
    }
    return GgufValue(std::move(values));
  }

  // The type and number of a list's values.
  Result<std::pair<uint32_t, uint64_t>> TakeArrayHead(const std::string& key) {
    HEED_ASSIGN(const uint32_t type, Take<uint32_t>());
    if (type == kArray) {
      return Bad(fmt::format("a list of lists as {}", Quoted(key)), "a list of plain values");
    }
    const size_t least = type == kString ? sizeof(uint64_t) : 1;
    HEED_ASSIGN(const uint64_t count, TakeCount(least, "values in a list"));
    if (count > kMostValues) {
      return Bad(fmt::format("{} values in a list", count), fmt::format("at most {}", kMostValues));
    }
    return std::pair(type, count);
  }

  Result<GgufValue> TakeArray(const std::string& key) {
    HEED_ASSIGN(const auto head, TakeArrayHead(key));
    const auto [type, count] = head;
    if (type == kString) {
      return TakeList<std::string>(
          count, [this] { return TakeString().map([](auto s) { return std::string(s); }); });
    }
    if (type == kFloat32) {
      return TakeList<double>(count, [this] { return Take<float>(); });
    }
    if (type == kFloat64) {
      return TakeList<double>(count, [this] { return Take<double>(); });
    }
    if (type == kBool) return TakeList<int64_t>(count, [this, &key] { return TakeBool(key); });
    return TakeList<int64_t>(count, [&, type = type] { return TakeInteger(type, key); });
  }

  std::span<const std::byte> bytes_;
  const std::string& where_;
  size_t at_ = 0;
};

// The entry of one tensor; `begin` counts from the data's start as yet.
Result<GgufTensor> TakeTensor(Reader* reader) {
  GgufTensor tensor;
  HEED_ASSIGN(const std::string_view text, reader->TakeString());
  tensor.name = text;
  const std::string name = "tensor " + Quoted(tensor.name) + " of ";
  HEED_ASSIGN(const uint32_t rank, reader->Take<uint32_t>());
  if (rank < 1 || rank > kMostDimensions) {
    return reader->Bad(name + fmt::format("{} dimensions", rank), "1 to 4");
  }
  for (uint32_t i = 0; i < rank; ++i) {
    HEED_ASSIGN(const uint64_t size, reader->Take<uint64_t>());
    if (size < 1 || size > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return reader->Bad(name + fmt::format("the size {}", size), "1 or above");
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  HEED_ASSIGN(const uint32_t type, reader->Take<uint32_t>());
  const std::optional<BlockType> known = BlockTypeOf(type);
  if (!known) {
    return reader->Bad(name + fmt::format("ggml's number type {}", type),
                       "F32, F16, BF16, Q8_0, Q4_0, Q4_K or Q6_K");
  }
  tensor.type = *known;
  const BlockSize block = SizeOf(tensor.type);
  const std::optional<int64_t> count = ElementCount(tensor.shape);
  if (!count || *count > std::numeric_limits<int64_t>::max() / 8) {
    return reader->Bad(name + "shape " + ShapeText(tensor.shape), "a size below 2^60");
  }
  if (tensor.shape.back() % block.elements != 0) {
    return reader->Bad(name + fmt::format("rows of {}", tensor.shape.back()),
                       fmt::format("whole blocks of {}", block.elements));
  }
  tensor.size = static_cast<size_t>(*count / block.elements * block.bytes);
  HEED_ASSIGN(const uint64_t offset, reader->Take<uint64_t>());
  tensor.begin = offset;
  return tensor;
}

// Checks that the tensors lie inside the data, aligned and apart, with no more than padding between
// and behind them; makes `begin` count from the file's start.
Status PlaceTensors(Reader* reader, size_t data, size_t file_size, size_t alignment,
                    std::vector<GgufTensor>* tensors) {
  std::vector<GgufTensor*> order;
  for (GgufTensor& tensor : *tensors) order.push_back(&tensor);
  std::ranges::stable_sort(order, {}, [](const GgufTensor* t) { return t->begin; });
  const size_t size = file_size - std::min(data, file_size);
  size_t covered = 0;
  for (GgufTensor* tensor : order) {
    const std::string name = "tensor " + Quoted(tensor->name);
    const size_t expected = AlignUp(covered, alignment);
    if (tensor->begin != expected) {
      return reader->Bad(name + fmt::format(" at {}", tensor->begin),
                         fmt::format("{}, where the tensor before ends", expected));
    }
    if (tensor->begin > size || tensor->size > size - tensor->begin) {
      return reader->Bad(
          name + fmt::format(" up to byte {} of the data", static_cast<double>(tensor->begin) +
                                                               static_cast<double>(tensor->size)),
          fmt::format("at most {}, the file's end", size),
          "the file is cut short; fetch or save it again");
    }
    covered = tensor->begin + tensor->size;
    tensor->begin += data;
  }
  if (size > AlignUp(covered, alignment)) {
    return reader->Bad(
        fmt::format("{} byte{} after the last tensor", size - covered, Plural(size - covered)),
        "none");
  }
  return {};
}

// Builds a header.
class Writer {
 public:
  template <class T>
  void Put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Put(std::string_view text) {
    Put(static_cast<uint64_t>(text.size()));
    text_ += text;
  }
  void PutValue(const GgufValue& value) {
    std::visit([this](const auto& v) { PutTyped(v); }, value);
  }
  std::string_view text() const { return text_; }
  void Pad() { text_.resize(AlignUp(text_.size(), kAlignment), '\0'); }

 private:
  void PutTyped(bool value) {
    Put(uint32_t{kBool});
    Put(static_cast<uint8_t>(value));
  }
  void PutTyped(int64_t value) {
    Put(uint32_t{kUint32});
    Put(static_cast<uint32_t>(value));
  }
  void PutTyped(double value) {
    Put(uint32_t{kFloat32});
    Put(static_cast<float>(value));
  }
  void PutTyped(const std::string& value) {
    Put(uint32_t{kString});
    Put(std::string_view(value));
  }
  void PutTyped(const std::vector<int64_t>& values) {
    PutListHead(kInt32, values.size());
    for (const int64_t value : values) Put(static_cast<int32_t>(value));
  }
  void PutTyped(const std::vector<double>& values) {
    PutListHead(kFloat32, values.size());
    for (const double value : values) Put(static_cast<float>(value));
  }
  void PutTyped(const std::vector<std::string>& values) {
    PutListHead(kString, values.size());
    for (const std::string& value : values) Put(std::string_view(value));
  }
  void PutListHead(uint32_t type, size_t count) {
    Put(uint32_t{kArray});
    Put(type);
    Put(static_cast<uint64_t>(count));
  }

  std::string text_;
};

size_t BytesOf(const GgufTensorToWrite& tensor) {
  const BlockSize block = SizeOf(tensor.type);
  return static_cast<size_t>(*ElementCount(tensor.shape) / block.elements * block.bytes);
}

}  // namespace

Result<GgufFile> GgufFile::Open(const std::string& path) {
  HEED_ASSIGN(MappedFile mapped, MappedFile::Open(path));
  HEED_ASSIGN(GgufFile file, Parse(mapped.bytes(), path));
  file.file_ = std::move(mapped);
  return file;
}

Result<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes, const std::string& where) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  Reader reader(bytes, where);
  if (!text.starts_with(kMagic)) return reader.Bad("no GGUF at its start", "a GGUF file");
  HEED_TRY(reader.Take<uint32_t>());
  HEED_ASSIGN(const uint32_t version, reader.Take<uint32_t>());
  if (version < 2 || version > kVersion) {
    return reader.Bad(fmt::format("version {}", version), "2 or 3, little-endian");
  }
  // The least that an entry takes: its lengths and numbers, with an empty name.
  HEED_ASSIGN(const uint64_t tensor_count, reader.TakeCount(32, "tensors"));
  HEED_ASSIGN(const uint64_t value_count, reader.TakeCount(13, "values"));
  GgufFile file;
  for (uint64_t i = 0; i < value_count; ++i) {
    HEED_ASSIGN(const std::string_view name, reader.TakeString());
    const std::string key(name);
    HEED_ASSIGN(const std::span<const std::byte> value, reader.SkipValue(key));
    if (!file.metadata_.emplace(key, value).second) {
      return reader.Bad("two values " + Quoted(key), "one");
    }
  }
  std::set<std::string_view> names;
  file.tensors_.reserve(tensor_count);
  for (uint64_t i = 0; i < tensor_count; ++i) {
    HEED_ASSIGN(GgufTensor tensor, TakeTensor(&reader));
    file.tensors_.push_back(std::move(tensor));
    if (!names.insert(file.tensors_.back().name).second) {
      return reader.Bad("two tensors " + Quoted(file.tensors_.back().name), "one");
    }
  }
  file.where_ = where;
  int64_t alignment = kAlignment;
  HEED_TRY(file.Get(kAlignmentKey, &alignment));
  if (alignment < 1 || alignment > kMostAlignment ||
      !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    return reader.Bad(fmt::format("{} {}", kAlignmentKey, alignment),
                      "a power of two up to 1048576");
  }
  const auto step = static_cast<size_t>(alignment);
  HEED_TRY(PlaceTensors(&reader, AlignUp(reader.at(), step), bytes.size(), step, &file.tensors_));
  file.bytes_ = bytes;
  return file;
}

const GgufTensor* GgufFile::Find(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &GgufTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

void GgufFile::Read(const GgufTensor& tensor, float* out) const {
  DecodeBlocks(tensor.type, Bytes(tensor).data(), *ElementCount(tensor.shape), out);
}

std::vector<float> GgufFile::Floats(const GgufTensor& tensor) const {
  std::vector<float> values(static_cast<size_t>(*ElementCount(tensor.shape)));
  Read(tensor, values.data());
  return values;
}

Result<GgufValue> GgufFile::Value(const std::string& key, std::span<const std::byte> bytes) const {
  return Reader(bytes, where_).TakeValue(key);
}

std::map<std::string, GgufValue> GgufFile::Metadata() const {
  std::map<std::string, GgufValue> metadata;
  for (const auto& [key, bytes] : metadata_) metadata.emplace(key, *Value(key, bytes));
  return metadata;
}

namespace {

// The type of a GgufValue that T has views of; else T.
template <class T>
struct Owned : std::type_identity<T> {};
template <>
struct Owned<std::string_view> : std::type_identity<std::string> {};
template <>
struct Owned<std::vector<std::string_view>> : std::type_identity<std::vector<std::string>> {};

}  // namespace

template <class T>
Status GgufFile::Get(const std::string& key, T* out) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return {};
  const std::span<const std::byte> bytes = found->second;
  constexpr bool kViews = !std::is_same_v<T, typename Owned<T>::type>;
  if constexpr (kViews) {
    if (Reader(bytes, where_).TakeViews(out)) return {};
  }
  HEED_ASSIGN(GgufValue value, Value(key, bytes));
  if constexpr (!kViews) {
    if (T* typed = std::get_if<T>(&value)) {
      *out = std::move(*typed);
      return {};
    }
  }
  if constexpr (std::is_same_v<T, double>) {
    if (const int64_t* whole = std::get_if<int64_t>(&value)) {
      *out = static_cast<double>(*whole);
      return {};
    }
  }
  static constexpr const char* kTypes[] = {"truth",
                                           "a whole number",
                                           "a number",
                                           "a string",
                                           "a list of whole numbers",
                                           "a list of numbers",
                                           "a list of strings"};
  return Fail(ErrorKind::kFormat, where_ + ": " + key, kTypes[value.index()],
              kTypes[GgufValue(typename Owned<T>::type{}).index()]);
}

template Status GgufFile::Get(const std::string&, bool*) const;
template Status GgufFile::Get(const std::string&, int64_t*) const;
template Status GgufFile::Get(const std::string&, double*) const;
template Status GgufFile::Get(const std::string&, std::string*) const;
template Status GgufFile::Get(const std::string&, std::string_view*) const;
template Status GgufFile::Get(const std::string&, std::vector<int64_t>*) const;
template Status GgufFile::Get(const std::string&, std::vector<double>*) const;
template Status GgufFile::Get(const std::string&, std::vector<std::string>*) const;
template Status GgufFile::Get(const std::string&, std::vector<std::string_view>*) const;

Status WriteGguf(const std::string& path,
                 std::span<const std::pair<std::string, GgufValue>> metadata,
                 std::span<const GgufTensorToWrite> tensors, bool overwrite) {
  Writer header;
  uint32_t magic;
  std::memcpy(&magic, kMagic.data(), sizeof(magic));
  header.Put(magic);
  header.Put(kVersion);
  header.Put(static_cast<uint64_t>(tensors.size()));
  header.Put(static_cast<uint64_t>(metadata.size()));
  for (const auto& [key, value] : metadata) {
    header.Put(std::string_view(key));
    header.PutValue(value);
  }
  size_t offset = 0;
  for (const GgufTensorToWrite& tensor : tensors) {
    HEED_DCHECK(tensor.shape.back() % SizeOf(tensor.type).elements == 0);
    header.Put(std::string_view(tensor.name));
    header.Put(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      header.Put(static_cast<uint64_t>(tensor.shape[i]));
    }
    header.Put(static_cast<uint32_t>(tensor.type));
    header.Put(static_cast<uint64_t>(offset));
    offset = AlignUp(offset + BytesOf(tensor), kAlignment);
  }
  header.Pad();
  HEED_ASSIGN(AtomicFile file, AtomicFile::Create(path, overwrite));
  HEED_TRY(file.Write(header.text()));
  for (const GgufTensorToWrite& tensor : tensors) {
    const std::vector<float> values = tensor.values();
    std::vector<std::byte> bytes(AlignUp(BytesOf(tensor), kAlignment));
    EncodeBlocks(tensor.type, values.data(), static_cast<int64_t>(values.size()), bytes.data());
    HEED_TRY(file.Write(bytes));
  }
  return file.Commit();
}

}  // namespace heed
