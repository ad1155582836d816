// libcurl, opened when it is first called: it brings forty libraries with it, and to load and link
// them takes longer than many a command. What is called here are its own functions of these names.
#include <curl/curl.h>
#include <dlfcn.h>

#include <cstdarg>
#include <type_traits>

#undef curl_easy_getinfo
#undef curl_easy_setopt

// clang doubts that an enumeration may stand before "...": these are as wide as int.
#pragma GCC diagnostic ignored "-Wvarargs"

namespace {

struct Functions {
  decltype(&curl_global_init) global_init = nullptr;
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_reset) easy_reset = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&curl_easy_perform) easy_perform = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  decltype(&curl_easy_header) easy_header = nullptr;
  decltype(&curl_easy_nextheader) easy_nextheader = nullptr;
  bool complete = false;

  Functions() {
    void* const library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    complete = true;
    const auto find = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      complete &= *function != nullptr;
    };
    find("curl_global_init", &global_init);
    find("curl_easy_init", &easy_init);
    find("curl_easy_cleanup", &easy_cleanup);
    find("curl_easy_reset", &easy_reset);
    find("curl_easy_setopt", &easy_setopt);
    find("curl_easy_getinfo", &easy_getinfo);
    find("curl_easy_perform", &easy_perform);
    find("curl_easy_strerror", &easy_strerror);
    find("curl_easy_header", &easy_header);
    find("curl_easy_nextheader", &easy_nextheader);
  }
};

const Functions& Curl() {
  static const Functions functions;
  return functions;
}

}  // namespace

extern "C" {

// The only one that may be called before it has succeeded.
CURLcode curl_global_init(long flags) {
  return Curl().complete ? Curl().global_init(flags) : CURLE_FAILED_INIT;
}
CURL* curl_easy_init() { return Curl().easy_init(); }
void curl_easy_cleanup(CURL* curl) { Curl().easy_cleanup(curl); }
void curl_easy_reset(CURL* curl) { Curl().easy_reset(curl); }
CURLcode curl_easy_perform(CURL* curl) { return Curl().easy_perform(curl); }
const char* curl_easy_strerror(CURLcode code) { return Curl().easy_strerror(code); }
CURLHcode curl_easy_header(CURL* curl, const char* name, size_t index, unsigned int origin,
                           int request, curl_header** header) {
  return Curl().easy_header(curl, name, index, origin, request, header);
}
curl_header* curl_easy_nextheader(CURL* curl, unsigned int origin, int request,
                                  curl_header* previous) {
  return Curl().easy_nextheader(curl, origin, request, previous);
}
// Every option is a number or pointer of 64 bits, all of which are passed alike.
CURLcode curl_easy_setopt(CURL* curl, CURLoption option, ...) {
  std::va_list list;
  va_start(list, option);
  void* const value = va_arg(list, void*);
  va_end(list);
  return Curl().easy_setopt(curl, option, value);
}
CURLcode curl_easy_getinfo(CURL* curl, CURLINFO info, ...) {
  std::va_list list;
  va_start(list, info);
  void* const value = va_arg(list, void*);
  va_end(list);
  return Curl().easy_getinfo(curl, info, value);
}

}  // extern "C"
