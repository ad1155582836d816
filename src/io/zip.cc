#include "io/zip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/plural.h"
#include "base/quote.h"

namespace heed {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kDirectoryEntry = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50, kZip64Locator = 0x07064b50, kZip64End = 0x06064b50;
constexpr size_t kLocalSize = 30, kEntrySize = 46, kEndSize = 22, kLocatorSize = 20;
constexpr size_t kZip64EndSize = 56;
constexpr uint16_t kFull16 = 0xffff;      // the number stands in a zip64 record
constexpr uint32_t kFull32 = 0xffffffff;  // likewise
constexpr uint64_t kDeflateRatio = 1032;  // the most that one byte of deflate unpacks to

template <class T>
T Read(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

bool Fits(std::span<const std::byte> bytes, uint64_t at, uint64_t size) {
  return at <= bytes.size() && size <= bytes.size() - at;
}

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

tl::unexpected<Error> Bad(const std::string& where, std::string found, std::string expected = "") {
  return Fail(ErrorKind::kFormat, where, std::move(found), std::move(expected),
              "the zip archive may be damaged; save it again");
}

struct Directory {
  uint64_t offset = 0, size = 0, entries = 0;
};

// The end record lies behind everything but a comment of up to 65535 bytes.
std::optional<size_t> FindEnd(std::span<const std::byte> zip) {
  if (zip.size() < kEndSize) return std::nullopt;
  const size_t last = zip.size() - kEndSize;
  for (size_t back = 0; back <= std::min<size_t>(last, 0xffff); ++back) {
    const size_t at = last - back;
    if (Read<uint32_t>(zip, at) == kEnd && Read<uint16_t>(zip, at + 20) == back) return at;
  }
  return std::nullopt;
}

Result<Directory> FindDirectory(std::span<const std::byte> zip, const std::string& where) {
  const std::optional<size_t> end = FindEnd(zip);
  if (!end) return Bad(where, "no directory at the end", "a whole zip archive");
  Directory directory;
  directory.entries = Read<uint16_t>(zip, *end + 10);
  directory.size = Read<uint32_t>(zip, *end + 12);
  directory.offset = Read<uint32_t>(zip, *end + 16);
  bool split = Read<uint16_t>(zip, *end + 4) != 0 || Read<uint16_t>(zip, *end + 6) != 0 ||
               Read<uint16_t>(zip, *end + 8) != directory.entries;
  size_t limit = *end;
  if (directory.entries == kFull16 || directory.size == kFull32 || directory.offset == kFull32) {
    if (*end < kLocatorSize || Read<uint32_t>(zip, *end - kLocatorSize) != kZip64Locator) {
      return Bad(where, "no zip64 locator", "one before the end record");
    }
    const uint64_t at = Read<uint64_t>(zip, *end - kLocatorSize + 8);
    if (!Fits(zip, at, kZip64EndSize) || Read<uint32_t>(zip, at) != kZip64End) {
      return Bad(where, "no zip64 end record", "one where its locator points");
    }
    directory.entries = Read<uint64_t>(zip, at + 32);
    directory.size = Read<uint64_t>(zip, at + 40);
    directory.offset = Read<uint64_t>(zip, at + 48);
    split = Read<uint32_t>(zip, at + 16) != 0 || Read<uint32_t>(zip, at + 20) != 0 ||
            Read<uint64_t>(zip, at + 24) != directory.entries;
    limit = at;
  }
  if (split) return Bad(where, "a part of a split archive", "one file");
  if (!Fits(zip.first(limit), directory.offset, directory.size)) {
    return Bad(where, "a directory outside the file", "a whole zip archive");
  }
  return directory;
}

// Takes the numbers that the entry left to its zip64 field: unpacked size, packed size, offset.
bool ReadZip64(std::span<const std::byte> extra, uint64_t* size, uint64_t* packed,
               uint64_t* offset) {
  while (extra.size() >= 4) {
    const auto tag = Read<uint16_t>(extra, 0), length = Read<uint16_t>(extra, 2);
    if (length > extra.size() - 4) return false;
    std::span<const std::byte> field = extra.subspan(4, length);
    if (tag == 1) {
      for (uint64_t* value : {size, packed, offset}) {
        if (*value != kFull32) continue;
        if (field.size() < 8) return false;
        *value = Read<uint64_t>(field, 0);
        field = field.subspan(8);
      }
      return true;
    }
    extra = extra.subspan(4 + length);
  }
  return *size != kFull32 && *packed != kFull32 && *offset != kFull32;
}

struct Located {
  ZipMember member;
  uint64_t begin = 0, end = 0;  // of the local header and the data
};

// Reads the entry at `at` of the directory, moves `at` behind it, and finds the member's bytes.
Result<Located> ReadEntry(std::span<const std::byte> zip, std::span<const std::byte> directory,
                          size_t* at, const std::string& where) {
  if (!Fits(directory, *at, kEntrySize) || Read<uint32_t>(directory, *at) != kDirectoryEntry) {
    return Bad(where, "a directory cut short", "an entry for each member");
  }
  const std::span<const std::byte> entry = directory.subspan(*at);
  const size_t name_size = Read<uint16_t>(entry, 28), extra_size = Read<uint16_t>(entry, 30);
  const size_t comment_size = Read<uint16_t>(entry, 32);
  if (!Fits(entry, kEntrySize, name_size + extra_size + comment_size)) {
    return Bad(where, "a directory cut short", "an entry for each member");
  }
  *at += kEntrySize + name_size + extra_size + comment_size;

  Located located;
  ZipMember& member = located.member;
  member.name = Text(entry.subspan(kEntrySize, name_size));
  const std::string inside = where + ": member " + Quoted(member.name);
  if (!IsUtf8(member.name)) return Bad(inside, "a name that is not UTF-8", "UTF-8");
  const auto flags = Read<uint16_t>(entry, 8), method = Read<uint16_t>(entry, 10);
  if ((flags & 1) != 0) return Bad(inside, "encrypted", "a plain member");
  if (method != 0 && method != 8) {
    return Bad(inside, fmt::format("packing method {}", method), "0 (stored) or 8 (deflated)");
  }
  member.deflated = method == 8;
  member.crc = Read<uint32_t>(entry, 16);
  uint64_t packed = Read<uint32_t>(entry, 20);
  member.size = Read<uint32_t>(entry, 24);
  located.begin = Read<uint32_t>(entry, 42);
  if (!ReadZip64(entry.subspan(kEntrySize + name_size, extra_size), &member.size, &packed,
                 &located.begin)) {
    return Bad(inside, "sizes left to a zip64 field that is not there", "the field");
  }
  if (!member.deflated && member.size != packed) {
    return Bad(inside, fmt::format("{} stored byte{} of {}", packed, Plural(packed), member.size),
               "all of them");
  }
  if (member.size / kDeflateRatio > packed) {
    return Bad(inside, fmt::format("{} byte{} out of {}", member.size, Plural(member.size), packed),
               "a size that deflate can reach");
  }

  if (!Fits(zip, located.begin, kLocalSize) || Read<uint32_t>(zip, located.begin) != kLocalHeader) {
    return Bad(inside, "no header where the directory points", "one");
  }
  const uint64_t name_at = located.begin + kLocalSize;
  const uint64_t local_name = Read<uint16_t>(zip, located.begin + 26);
  const uint64_t data_at = name_at + local_name + Read<uint16_t>(zip, located.begin + 28);
  if (!Fits(zip, data_at, packed)) return Bad(inside, "bytes beyond the file", "a whole archive");
  if (Text(zip.subspan(name_at, local_name)) != member.name ||
      Read<uint16_t>(zip, located.begin + 8) != method) {
    return Bad(inside, "another name or packing in its own header", "the directory's");
  }
  member.bytes = zip.subspan(data_at, packed);
  located.end = data_at + packed;
  return located;
}

}  // namespace

Result<std::vector<ZipMember>> ReadZipDirectory(std::span<const std::byte> zip,
                                                const std::string& where) {
  HEED_ASSIGN(const Directory found, FindDirectory(zip, where));
  const std::span<const std::byte> directory = zip.subspan(found.offset, found.size);
  std::vector<ZipMember> members;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  std::set<std::string> names;
  size_t at = 0;
  for (uint64_t i = 0; i < found.entries; ++i) {
    HEED_ASSIGN(Located located, ReadEntry(zip, directory, &at, where));
    if (!names.insert(located.member.name).second) {
      return Bad(where, "two members " + Quoted(located.member.name), "one");
    }
    ranges.emplace_back(located.begin, located.end);
    members.push_back(std::move(located.member));
  }
  if (at != directory.size()) return Bad(where, "more directory than members", "as many entries");
  // Members that share bytes unpack to more than any file could hold.
  ranges.emplace_back(found.offset, found.offset + found.size);
  std::ranges::sort(ranges);
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) {
      return Bad(where, "members that overlap", "each at its own place");
    }
  }
  return members;
}

Result<std::vector<std::byte>> Inflate(const ZipMember& member, const std::string& where) {
  const std::string inside = where + ": member " + Quoted(member.name);
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return Bad(inside, "no memory to unpack it");
  std::vector<std::byte> out;
  size_t taken = 0;
  int state = Z_OK;
  // The output grows with what really comes out; one spare byte shows a stream that is too long.
  for (size_t filled = 0; state == Z_OK && filled <= member.size; filled = out.size()) {
    constexpr size_t kPiece = 1 << 20;
    const size_t room = std::min<size_t>(member.size - filled + 1, std::max(filled, kPiece));
    out.resize(filled + std::min<size_t>(room, std::numeric_limits<uInt>::max()));
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    stream.avail_out = static_cast<uInt>(out.size() - filled);
    while (state == Z_OK && stream.avail_out > 0) {
      if (stream.avail_in == 0) {
        stream.next_in =
            reinterpret_cast<Bytef*>(const_cast<std::byte*>(member.bytes.data())) + taken;
        stream.avail_in = static_cast<uInt>(
            std::min<size_t>(member.bytes.size() - taken, std::numeric_limits<uInt>::max()));
        taken += stream.avail_in;
      }
      state = inflate(&stream, Z_NO_FLUSH);
    }
    out.resize(out.size() - stream.avail_out);
  }
  const bool whole = state == Z_STREAM_END && stream.avail_in == 0 &&
                     taken == member.bytes.size() && out.size() == member.size;
  inflateEnd(&stream);
  if (!whole) {
    return Bad(inside, "a deflate stream that is damaged or of another size",
               fmt::format("{} byte{}", member.size, Plural(member.size)));
  }
  return out;
}

Status CheckCrc(const ZipMember& member, std::span<const std::byte> unpacked,
                const std::string& where) {
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(unpacked.data()), unpacked.size());
  if (crc == member.crc) return {};
  return Bad(where + ": member " + Quoted(member.name), fmt::format("CRC-32 {:08x}", crc),
             fmt::format("{:08x}", member.crc));
}

}  // namespace heed
