// The members of a zip archive (PKWARE APPNOTE 6.3), as numpy and torch write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace heed {

struct ZipMember {
  std::string name;
  std::span<const std::byte> bytes;  // as they lie in the archive
  uint64_t size = 0;                 // unpacked
  uint32_t crc = 0;                  // of the unpacked bytes
  bool deflated = false;             // else stored
};

// In the directory's order. Errors (kFormat): a directory that is missing or leaves the file, split
// archives, encryption, packings but stored and deflated, members that overlap or whose two headers
// disagree, a size that deflate cannot reach, a name that comes twice or is not UTF-8.
Result<std::vector<ZipMember>> ReadZipDirectory(std::span<const std::byte> zip,
                                                const std::string& where);

// The bytes of a deflated member. Errors (kFormat): a damaged stream; another size than promised.
Result<std::vector<std::byte>> Inflate(const ZipMember& member, const std::string& where);

// Checks the unpacked bytes against the member's CRC-32.
Status CheckCrc(const ZipMember& member, std::span<const std::byte> unpacked,
                const std::string& where);

}  // namespace heed
