#include "io/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/mapped_file.h"

namespace heed {

void Digest::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Digest Digest::Sha256() {
  Digest digest;
  digest.context_.reset(EVP_MD_CTX_new());
  EVP_DigestInit_ex(digest.context_.get(), EVP_sha256(), nullptr);
  return digest;
}

Digest Digest::GitBlob(int64_t size) {
  Digest digest;
  digest.context_.reset(EVP_MD_CTX_new());
  EVP_DigestInit_ex(digest.context_.get(), EVP_sha1(), nullptr);
  const std::string head = fmt::format("blob {}", size);
  digest.Update(std::as_bytes(std::span(head.c_str(), head.size() + 1)));
  return digest;
}

Digest Digest::Like(std::string_view hash, int64_t size) {
  return hash.size() == 64 ? Sha256() : GitBlob(size);
}

void Digest::Update(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
}

std::string Digest::Hex() {
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(context_.get(), sum, &size);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", sum[i]);
  return text;
}

bool HasContent(const std::string& path, int64_t size, std::string_view hash) {
  const Result<MappedFile> file = MappedFile::Open(path);
  if (!file || static_cast<int64_t>(file->bytes().size()) != size) return false;
  Digest digest = Digest::Like(hash, size);
  digest.Update(file->bytes());
  return digest.Hex() == hash;
}

}  // namespace heed
