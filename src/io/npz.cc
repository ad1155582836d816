#include "io/npz.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/plural.h"
#include "base/quote.h"
#include "io/zip.h"
#include "tensor/shape.h"

namespace heed {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kHeaderCap = 1 << 20;
constexpr size_t kMaxRank = 64;
constexpr uint64_t kUnpackedCap = uint64_t{8} << 30;  // bytes of all deflated members together

// The header's three keys.
struct NpyHeader {
  std::string descr;  // byte order, kind and width, such as "<f4"
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// Reads the Python dictionary of a .npy header, and no other Python.
class NpyHeaderReader {
 public:
  explicit NpyHeaderReader(std::string_view text) : rest_(text) {}

  // Nothing when it is anything but a dictionary of the three keys, each once.
  std::optional<NpyHeader> Read() {
    if (!Take('{')) return std::nullopt;
    while (!Take('}')) {
      std::string key;
      if (!String(&key) || !Take(':') || !Value(key)) return std::nullopt;
      if (!Take(',') && !Peek('}')) return std::nullopt;
    }
    SkipSpace();
    if (!rest_.empty() || !descr_ || !order_ || !shape_) return std::nullopt;
    return NpyHeader{*descr_, *order_, *shape_};
  }

 private:
  void SkipSpace() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n')) rest_.remove_prefix(1);
  }
  bool Peek(char c) {
    SkipSpace();
    return rest_.starts_with(c);
  }
  bool Take(char c) {
    if (!Peek(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool TakeWord(std::string_view word) {
    SkipSpace();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  bool String(std::string* out) {
    SkipSpace();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return false;
    const size_t end = rest_.find(rest_[0], 1);
    if (end == std::string_view::npos) return false;
    *out = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return out->find('\\') == std::string::npos;
  }

  bool Value(const std::string& key) {
    if (key == "descr" && !descr_) {
      descr_.emplace();
      // A structured dtype is a list; its fields would need names of their own.
      return String(&*descr_);
    }
    if (key == "fortran_order" && !order_) {
      order_ = TakeWord("True");
      return *order_ || TakeWord("False");
    }
    if (key == "shape" && !shape_) {
      shape_.emplace();
      return Shape(&*shape_);
    }
    return false;
  }

  bool Shape(std::vector<int64_t>* shape) {
    if (!Take('(')) return false;
    while (!Take(')')) {
      SkipSpace();
      int64_t size = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
      if (error != std::errc() || size < 0 || shape->size() == kMaxRank) return false;
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      Take('L');  // Python 2 wrote long numbers so
      shape->push_back(size);
      if (!Take(',') && !Peek(')')) return false;
    }
    return true;
  }

  std::string_view rest_;
  std::optional<std::string> descr_;
  std::optional<bool> order_;
  std::optional<std::vector<int64_t>> shape_;
};

std::optional<DType> NumberType(std::string_view kind) {
  constexpr std::pair<std::string_view, DType> kTypes[] = {
      {"f8", DType::kF64}, {"f4", DType::kF32}, {"f2", DType::kF16}, {"i8", DType::kI64},
      {"i4", DType::kI32}, {"i2", DType::kI16}, {"i1", DType::kI8},  {"u8", DType::kU64},
      {"u4", DType::kU32}, {"u2", DType::kU16}, {"u1", DType::kU8},  {"b1", DType::kBool}};
  for (const auto& [name, dtype] : kTypes) {
    if (name == kind) return dtype;
  }
  return std::nullopt;
}

// Appends a code point in UTF-8; false for what is none.
bool AppendUtf8(uint32_t c, std::string* out) {
  if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return false;
  if (c < 0x80) {
    *out += static_cast<char>(c);
    return true;
  }
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  constexpr unsigned kLead[] = {0, 0xc0, 0xe0, 0xf0};
  *out += static_cast<char>(kLead[more] | c >> (6 * more));
  for (int i = more - 1; i >= 0; --i) *out += static_cast<char>(0x80 | (c >> (6 * i) & 0x3f));
  return true;
}

// numpy pads a string with zeros: 4 bytes a character ('U'), or one, ASCII ('S').
std::optional<std::string> Utf8(std::span<const std::byte> bytes, bool wide, bool big_endian) {
  std::string out;
  size_t length = 0;  // of `out` up to the last character that is not padding
  const size_t width = wide ? 4 : 1;
  for (size_t i = 0; i < bytes.size(); i += width) {
    uint32_t c = 0;
    std::memcpy(&c, bytes.data() + i, width);
    if (wide && big_endian) c = __builtin_bswap32(c);
    if (!AppendUtf8(c, &out) || (!wide && c > 0x7f)) return std::nullopt;
    if (c != 0) length = out.size();
  }
  out.resize(length);
  return out;
}

void SwapBytes(std::vector<std::byte>* bytes, size_t width) {
  for (size_t i = 0; i + width <= bytes->size(); i += width) {
    std::reverse(bytes->begin() + static_cast<ptrdiff_t>(i),
                 bytes->begin() + static_cast<ptrdiff_t>(i + width));
  }
}

// The elements of a Fortran-ordered array (first index fastest) in C order (last index fastest).
std::vector<std::byte> ToRowMajor(std::span<const std::byte> from, const TensorEntry& entry) {
  const size_t rank = entry.shape.size(), width = SizeOf(entry.dtype);
  std::vector<size_t> stride(rank, width), index(rank, 0);
  for (size_t d = 1; d < rank; ++d) {
    stride[d] = stride[d - 1] * static_cast<size_t>(entry.shape[d - 1]);
  }
  std::vector<std::byte> to(from.size());
  size_t source = 0;
  for (size_t at = 0; at < to.size(); at += width) {
    std::memcpy(to.data() + at, from.data() + source, width);
    for (size_t d = rank; d-- > 0;) {
      source += stride[d];
      if (++index[d] < static_cast<size_t>(entry.shape[d])) break;
      source -= stride[d] * index[d];
      index[d] = 0;
    }
  }
  return to;
}

std::string WithoutEnding(std::string name) {
  if (name.ends_with(".npy")) name.resize(name.size() - 4);
  return name;
}

}  // namespace

Result<NpzFile> NpzFile::Open(const std::string& path) {
  HEED_ASSIGN(MappedFile mapped, MappedFile::Open(path));
  HEED_ASSIGN(NpzFile file, Parse(mapped.bytes(), path));
  file.file_ = std::move(mapped);
  return file;
}

Result<NpzFile> NpzFile::Parse(std::span<const std::byte> bytes, std::string where) {
  if (IsPickle(bytes)) return PickleError(where);
  NpzFile file;
  file.where_ = std::move(where);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kMagic)) {
    const std::string name = file.where_.substr(file.where_.rfind('/') + 1);
    HEED_TRY(file.AddArray(WithoutEnding(name), bytes, {}));
  } else if (text.starts_with("PK")) {
    HEED_TRY(file.ReadZip(bytes));
  } else {
    return Fail(ErrorKind::kFormat, file.where_, "neither a zip archive nor a NumPy array",
                "a .npz or .npy file");
  }
  return file;
}

Status NpzFile::ReadZip(std::span<const std::byte> zip) {
  HEED_ASSIGN(const std::vector<ZipMember> members, ReadZipDirectory(zip, where_));
  uint64_t unpacked = 0;
  for (const ZipMember& member : members) {
    if (member.name.ends_with("data.pkl")) return PickleError(where_);
    if (!member.name.ends_with(".npy")) {
      return Fail(ErrorKind::kFormat, where_, "member " + Quoted(member.name),
                  "members that end in .npy");
    }
    if (member.deflated && (unpacked += member.size) > kUnpackedCap) {
      return Fail(ErrorKind::kFormat, where_, "more than 8 GiB of packed arrays", "less",
                  "save with numpy.savez, which does not pack");
    }
  }
  for (const ZipMember& member : members) {
    std::vector<std::byte> inflated;
    if (member.deflated) {
      HEED_ASSIGN(inflated, Inflate(member, where_));
    }
    const std::span<const std::byte> npy = member.deflated ? std::span(inflated) : member.bytes;
    HEED_TRY(CheckCrc(member, npy, where_));
    HEED_TRY(AddArray(WithoutEnding(member.name), npy, std::move(inflated)));
  }
  return {};
}

Status NpzFile::AddArray(std::string name, std::span<const std::byte> npy,
                         std::vector<std::byte> inflated) {
  const std::string where = where_ + ": array " + Quoted(name);
  const auto bad = [&where](std::string found, std::string expected, std::string hint = "") {
    return Fail(ErrorKind::kFormat, where, std::move(found), std::move(expected), std::move(hint));
  };
  const std::string_view text(reinterpret_cast<const char*>(npy.data()), npy.size());
  if (!text.starts_with(kMagic) || npy.size() < 12) return bad("no .npy header", "one");
  const int version = static_cast<int>(npy[6]);
  if (version < 1 || version > 3 || npy[7] != std::byte{0}) {
    return bad(fmt::format(".npy format {}.{}", version, static_cast<int>(npy[7])),
               "1.0, 2.0 or 3.0");
  }
  // Format 1 has a 2-byte header length, later ones 4 bytes.
  const size_t length_size = version == 1 ? 2 : 4, header_at = 8 + length_size;
  uint32_t length = 0;
  std::memcpy(&length, npy.data() + 8, length_size);
  if (length > kHeaderCap || length > npy.size() - header_at) {
    return bad(fmt::format("a header of {} byte{}", length, Plural(length)),
               "one inside the file, up to 1 MiB");
  }
  const std::optional<NpyHeader> header = NpyHeaderReader(text.substr(header_at, length)).Read();
  if (!header) {
    return bad("a header that is not read",
               "a dictionary of descr (one type), fortran_order and shape",
               "structured arrays are not supported: save each field alone");
  }

  const std::string& descr = header->descr;
  const char order = descr.empty() ? '?' : descr[0];
  const std::string_view kind = std::string_view(descr).substr(descr.empty() ? 0 : 1);
  if (kind.starts_with('O')) {
    return bad("Python objects, stored as a pickle", "numbers or a string",
               "save with allow_pickle=False and arrays of one number type");
  }
  const std::optional<DType> dtype = NumberType(kind);
  uint64_t width = dtype ? SizeOf(*dtype) : 0;
  const bool wide = kind.starts_with('U'), is_string = wide || kind.starts_with('S');
  if (is_string) {
    const auto [end, error] = std::from_chars(kind.data() + 1, kind.data() + kind.size(), width);
    if (error != std::errc() || end != kind.data() + kind.size() || width > kHeaderCap) width = 0;
    if (wide) width *= 4;
  }
  if ((!dtype && !is_string) || (is_string && width == 0 && kind.substr(1) != "0") ||
      std::string_view("<>|=").find(order) == std::string_view::npos) {
    return bad("the type " + Quoted(descr), "f2 f4 f8 i1 to i8 u1 to u8 b1, or a string U or S");
  }

  const std::optional<int64_t> count = ElementCount(header->shape);
  const std::span<const std::byte> data = npy.subspan(header_at + length);
  uint64_t size = 0;
  if (!count || __builtin_mul_overflow(static_cast<uint64_t>(*count), width, &size) ||
      size != data.size()) {
    return bad(fmt::format("{} byte{} behind the header", data.size(), Plural(std::ssize(data))),
               "those of " + Quoted(descr) + " " + ShapeText(header->shape));
  }
  if (is_string) {
    if (*count != 1) return bad("an array of strings", "numbers or one string");
    const std::optional<std::string> utf8 = Utf8(data, wide, order == '>');
    if (!utf8) return bad("a string that is not Unicode", "Unicode ('U') or ASCII ('S')");
    strings_.emplace(std::move(name), *utf8);
    return {};
  }
  tensors_.push_back({std::move(name), *dtype, header->shape, 0, data.size()});
  // A moved vector keeps its bytes where they are, so `data` still points to them.
  storage_.push_back({std::move(inflated), data, order == '>', header->fortran_order});
  return {};
}

template <class Use>
auto NpzFile::WithBytes(std::string_view name, Use use) const
    -> decltype(use(std::declval<const TensorEntry&>(), std::span<const std::byte>())) {
  HEED_ASSIGN(const TensorEntry* entry, RequireEntry(tensors_, name, where_));
  const Storage& storage = storage_[static_cast<size_t>(entry - tensors_.data())];
  const bool transpose = storage.fortran_order && entry->shape.size() > 1;
  if (!storage.big_endian && !transpose) return use(*entry, storage.bytes);
  std::vector<std::byte> bytes = transpose
                                     ? ToRowMajor(storage.bytes, *entry)
                                     : std::vector(storage.bytes.begin(), storage.bytes.end());
  if (storage.big_endian) SwapBytes(&bytes, SizeOf(entry->dtype));
  return use(*entry, std::span<const std::byte>(bytes));
}

Result<std::vector<float>> NpzFile::Floats(std::string_view name) const {
  return WithBytes(name, [this](const TensorEntry& entry, std::span<const std::byte> bytes) {
    return DecodeFloats<float>(entry, bytes, where_);
  });
}

Result<std::vector<double>> NpzFile::Doubles(std::string_view name) const {
  return WithBytes(name, [this](const TensorEntry& entry, std::span<const std::byte> bytes) {
    return DecodeFloats<double>(entry, bytes, where_);
  });
}

Result<std::vector<int64_t>> NpzFile::Integers(std::string_view name) const {
  return WithBytes(name, [this](const TensorEntry& entry, std::span<const std::byte> bytes) {
    return DecodeIntegers(entry, bytes, where_);
  });
}

}  // namespace heed
