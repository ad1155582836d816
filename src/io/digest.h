// Checksums as the hub names contents by: SHA-256, and git's SHA-1 of a blob.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace heed {

class Digest {
 public:
  // FIPS 180-4.
  static Digest Sha256();
  // What `git hash-object` prints for a file of `size` bytes: SHA-1 of "blob SIZE", a zero byte and
  // the bytes.
  static Digest GitBlob(int64_t size);
  // The one that makes numbers as long as `hash`: 64 hexadecimal digits are SHA-256, others git's.
  static Digest Like(std::string_view hash, int64_t size);

  void Update(std::span<const std::byte> bytes);
  // Lower-case hexadecimal. Called once, last.
  std::string Hex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// Whether `path` is a file of `size` bytes with that checksum.
bool HasContent(const std::string& path, int64_t size, std::string_view hash);

}  // namespace heed
