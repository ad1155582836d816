// libcrypto, opened when it is first called: to load and link it takes a third of the time in which
// the program starts, and only downloads need it. What is called here are its own functions of
// these names. Without the library no checksum is right.
#include <dlfcn.h>
#include <openssl/evp.h>

namespace {

// Calls the library's function of this name, or returns a zero.
template <class Result, class... Arguments>
Result Call(const char* name, Arguments... arguments) {
  static void* const library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
  void* const function = library == nullptr ? nullptr : dlsym(library, name);
  if (function == nullptr) return Result();
  return reinterpret_cast<Result (*)(Arguments...)>(function)(arguments...);
}

}  // namespace

extern "C" {

EVP_MD_CTX* EVP_MD_CTX_new() { return Call<EVP_MD_CTX*>("EVP_MD_CTX_new"); }
void EVP_MD_CTX_free(EVP_MD_CTX* context) { Call<void>("EVP_MD_CTX_free", context); }
const EVP_MD* EVP_sha1() { return Call<const EVP_MD*>("EVP_sha1"); }
const EVP_MD* EVP_sha256() { return Call<const EVP_MD*>("EVP_sha256"); }
int EVP_DigestInit_ex(EVP_MD_CTX* context, const EVP_MD* type, ENGINE* engine) {
  return Call<int>("EVP_DigestInit_ex", context, type, engine);
}
int EVP_DigestUpdate(EVP_MD_CTX* context, const void* bytes, size_t size) {
  return Call<int>("EVP_DigestUpdate", context, bytes, size);
}
int EVP_DigestFinal_ex(EVP_MD_CTX* context, unsigned char* sum, unsigned int* size) {
  return Call<int>("EVP_DigestFinal_ex", context, sum, size);
}

}  // extern "C"
