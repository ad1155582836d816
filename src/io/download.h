// Files over HTTPS, by libcurl: whole, checked, and resumed where an earlier run was cut.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/status.h"

namespace heed {

struct HttpSettings {
  // Sent as a bearer's to the host and port of a URL, never to where that one redirects.
  std::string token;
  int stall_seconds = 30;  // without a byte, a connection counts as cut
  // In a row without a new byte, before a cut connection, a 429 or a 5xx is final; the wait between
  // them doubles each time.
  int tries = 5;
  double first_wait_s = 0.5;
  // Asked often; true ends the work with kInterrupted.
  std::function<bool()> should_stop = [] { return false; };
};

// A status that is no success is an answer, not an error.
struct HttpReply {
  int status = 0;
  std::string body = {};                            // of Get, and of a status that is no success
  std::map<std::string, std::string> headers = {};  // lower-case names; the first along redirects
  int64_t received = 0;                             // bytes of a file that came in this call
};

struct FileToFetch {
  std::string url;
  int64_t size = 0;     // bytes
  std::string hash;     // as Digest::Like
  std::string path;     // where it goes
  std::string partial;  // beside it, what has come so far; its name stands for that hash alone
  bool overwrite = false;
};

// Follows at most 10 redirects, from https never to http. A proxy is curl's affair: https_proxy,
// no_proxy. Errors (kIo): no such host, no connection, a cut one, an untrusted certificate, too
// many redirects; kInterrupted.
class HttpClient {
 public:
  explicit HttpClient(HttpSettings settings);

  Result<HttpReply> Head(const std::string& url);
  // A body of at most 64 MiB.
  Result<HttpReply> Get(const std::string& url);
  // Writes `file.partial` and, once it is whole and checked, moves it to `file.path`: then the
  // status is 200. `on_bytes` gets how many bytes of the file are there. Further errors: the disk
  // (kIo), another size or checksum than promised (kFormat; what came is thrown away).
  Result<HttpReply> Fetch(const FileToFetch& file, const std::function<void(int64_t)>& on_bytes);

 private:
  struct Attempt;
  struct Exchange;
  class Incoming;
  struct Free {
    void operator()(void* curl) const;
  };

  Attempt Try(const std::string& url, Exchange* exchange);
  Attempt Continue(const std::string& url, Incoming* incoming);
  Result<HttpReply> Ask(const std::string& url, bool head);
  Result<HttpReply> Persist(const std::string& url, const std::function<Attempt()>& attempt);
  Status Wait(const std::string& url, double seconds) const;

  HttpSettings settings_;
  std::unique_ptr<void, Free> curl_;  // keeps connections
};

}  // namespace heed
