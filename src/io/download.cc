#include "io/download.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "base/mapped_file.h"
#include "base/plural.h"
#include "io/digest.h"
#include "io/file.h"

namespace heed {
namespace {

constexpr size_t kMostBody = size_t{64} << 20;
constexpr long kMostRedirects = 10;
constexpr long kConnectSeconds = 30;
constexpr double kLongestWait = 60;
constexpr int kRangeBeyondEnd = 416;
constexpr long kBufferBytes = 512 << 10;
constexpr const char* kResumes = "run the same command again: it goes on from there";

bool IsSuccess(int64_t status) { return status == 200 || status == 206; }

// What a server says when it would answer later.
bool IsPassing(int64_t status) { return status == 408 || status == 429 || status >= 500; }

int64_t Info(CURL* curl, CURLINFO what) {
  curl_off_t value = 0;
  curl_easy_getinfo(curl, what, &value);
  return value;
}

int StatusOf(CURL* curl) {
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

std::map<std::string, std::string> Headers(CURL* curl) {
  long redirects = 0;
  curl_easy_getinfo(curl, CURLINFO_REDIRECT_COUNT, &redirects);
  std::map<std::string, std::string> headers;
  for (int request = 0; request <= redirects; ++request) {
    curl_header* header = nullptr;
    while ((header = curl_easy_nextheader(curl, CURLH_HEADER, request, header)) != nullptr) {
      std::string name = header->name;
      std::transform(name.begin(), name.end(), name.begin(),
                     [](char c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; });
      headers.emplace(std::move(name), header->value);
    }
  }
  return headers;
}

// "bytes 100-199/200" (RFC 9110, 14.4): the first byte, and the size of the whole, -1 for "*".
std::optional<std::pair<int64_t, int64_t>> ParseContentRange(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return {};
  text.remove_prefix(kUnit.size());
  const size_t dash = text.find('-'), slash = text.find('/');
  if (dash == text.npos || slash == text.npos || dash > slash) return {};
  const auto number = [](std::string_view digits, int64_t* value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
    return error == std::errc() && end == digits.data() + digits.size() && *value >= 0;
  };
  int64_t first = 0, whole = -1;
  if (!number(text.substr(0, dash), &first)) return {};
  if (text.substr(slash + 1) != "*" && !number(text.substr(slash + 1), &whole)) return {};
  return std::pair(first, whole);
}

tl::unexpected<Error> WrongSize(const FileToFetch& file, int64_t found) {
  return Fail(ErrorKind::kFormat, file.url, fmt::format("{} byte{}", found, Plural(found)),
              fmt::format("{}", file.size), "the file may have changed meanwhile: run again");
}

}  // namespace

// One request and what its body goes to.
struct HttpClient::Exchange {
  bool head = false;
  int64_t from = 0;  // the first byte that is asked for
  // Takes the body of a success; without it, and without success, that goes to `body`.
  std::function<Status(std::span<const std::byte>)> sink;
  std::string body;
  Status status;  // why a callback ended the exchange
  CURL* curl = nullptr;

  static size_t OnBody(char* data, size_t, size_t size, void* self) {
    auto& exchange = *static_cast<Exchange*>(self);
    exchange.status = exchange.Take({data, size});
    return exchange.status ? size : 0;
  }

  Status Take(std::string_view bytes) {
    if (sink && IsSuccess(StatusOf(curl))) return sink(std::as_bytes(std::span(bytes)));
    if (body.size() + bytes.size() > kMostBody) {
      return Fail(ErrorKind::kFormat, "answer", "more than 64 MiB", "less");
    }
    body += bytes;
    return {};
  }
};

struct HttpClient::Attempt {
  Result<HttpReply> reply;
  bool again = false;    // another one may do better
  bool further = false;  // bytes came that no earlier one had
  double wait_s = 0;     // that the server asks for
};

namespace {

int OnProgress(void* settings, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<HttpSettings*>(settings)->should_stop() ? 1 : 0;
}

tl::unexpected<Error> Stopped(const std::string& url) {
  return Fail(ErrorKind::kInterrupted, url, "stopped", "", kResumes);
}

// What curl's refusal means to people.
tl::unexpected<Error> Explain(CURLcode code, const std::string& url, const std::string& detail,
                              int stall_seconds) {
  const auto fail = [&](const std::string& found, const char* hint) {
    return Fail(ErrorKind::kIo, url, found, "", hint);
  };
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
      return fail(detail,
                  "is there a network? HF_ENDPOINT names another host, https_proxy a proxy");
    case CURLE_COULDNT_RESOLVE_PROXY:
      return fail(detail, "see the environment's https_proxy and http_proxy");
    case CURLE_COULDNT_CONNECT:
      return fail(detail, "is there a network, and does it need https_proxy?");
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return fail("a certificate that is not trusted: " + detail,
                  "see the clock, and the package ca-certificates");
    case CURLE_TOO_MANY_REDIRECTS:
      return fail(fmt::format("more than {} redirects", kMostRedirects),
                  "see HF_ENDPOINT and the proxy");
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
      return fail("no address to be fetched: " + detail, "see HF_ENDPOINT");
    case CURLE_OPERATION_TIMEDOUT:
      return fail(fmt::format("no byte for {} s", stall_seconds), kResumes);
    case CURLE_ABORTED_BY_CALLBACK:
      return Stopped(url);
    default:
      return fail("the connection was cut: " + detail, kResumes);
  }
}

bool IsFinal(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_ABORTED_BY_CALLBACK:
    case CURLE_OUT_OF_MEMORY:
      return true;
    default:
      return false;
  }
}

}  // namespace

void HttpClient::Free::operator()(void* curl) const { curl_easy_cleanup(curl); }

HttpClient::HttpClient(HttpSettings settings) : settings_(std::move(settings)) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready == CURLE_OK) curl_.reset(curl_easy_init());
}

HttpClient::Attempt HttpClient::Try(const std::string& url, Exchange* exchange) {
  CURL* curl = curl_.get();
  if (curl == nullptr) {
    return {Fail(ErrorKind::kIo, url, "libcurl does not start", "", "please report this")};
  }
  char detail[CURL_ERROR_SIZE] = "";
  const std::string range = fmt::format("{}-", exchange->from);
  exchange->curl = curl;
  curl_easy_reset(curl);
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR,
                   url.starts_with("https:") ? "https" : "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMostRedirects);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "heed/" HEED_VERSION);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings_.stall_seconds));
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Exchange::OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, exchange);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, OnProgress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &settings_);
  if (exchange->head) curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  if (exchange->from > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  if (!settings_.token.empty()) {
    // Not a header of ours: this one curl keeps to the first host and port.
    curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, settings_.token.c_str());
  }
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  if (!exchange->status) return {tl::make_unexpected(exchange->status.error())};
  if (code != CURLE_OK) {
    const std::string text = *detail != '\0' ? detail : curl_easy_strerror(code);
    return {Explain(code, url, text, settings_.stall_seconds), !IsFinal(code)};
  }
  HttpReply reply;
  reply.status = StatusOf(curl);
  reply.headers = Headers(curl);
  reply.body = std::move(exchange->body);
  const bool again = IsPassing(reply.status);
  return {std::move(reply), again, false, static_cast<double>(Info(curl, CURLINFO_RETRY_AFTER))};
}

Status HttpClient::Wait(const std::string& url, double seconds) const {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    if (settings_.should_stop()) return Stopped(url);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return {};
}

Result<HttpReply> HttpClient::Persist(const std::string& url,
                                      const std::function<Attempt()>& attempt) {
  for (int failures = 0;;) {
    Attempt last = attempt();
    if (!last.again) return std::move(last.reply);
    failures = last.further ? 1 : failures + 1;
    if (failures >= settings_.tries) return std::move(last.reply);
    const double wait = std::ldexp(settings_.first_wait_s, failures - 1);
    HEED_TRY(Wait(url, std::min(std::max(wait, last.wait_s), kLongestWait)));
  }
}

Result<HttpReply> HttpClient::Ask(const std::string& url, bool head) {
  return Persist(url, [&] {
    Exchange exchange;
    exchange.head = head;
    return Try(url, &exchange);
  });
}

Result<HttpReply> HttpClient::Head(const std::string& url) { return Ask(url, true); }
Result<HttpReply> HttpClient::Get(const std::string& url) { return Ask(url, false); }

// One file under way.
class HttpClient::Incoming {
 public:
  Incoming(const FileToFetch& file, const std::function<void(int64_t)>& on_bytes, AtomicFile out)
      : file_(file),
        on_bytes_(on_bytes),
        out_(std::move(out)),
        digest_(Digest::Like(file.hash, file.size)) {}

  // Takes up what an earlier run left.
  Status Begin() {
    if (out_.size() > file_.size) return Restart();
    if (out_.size() == 0) return {};
    HEED_ASSIGN(const MappedFile partial, MappedFile::Open(file_.partial));
    digest_.Update(partial.bytes());
    most_ = out_.size();
    return {};
  }

  Status Restart() {
    digest_ = Digest::Like(file_.hash, file_.size);
    return out_.Restart();
  }

  // What the head of a success promises, before its body is taken. The server need not know ranges.
  Status CheckHead(CURL* curl) {
    if (StatusOf(curl) == 200) {
      const int64_t length = Info(curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T);
      if (length >= 0 && length != file_.size) return WrongSize(file_, length);
      return out_.size() > 0 ? Restart() : Status();
    }
    curl_header* header = nullptr;
    curl_easy_header(curl, "Content-Range", 0, CURLH_HEADER, -1, &header);
    const auto range = ParseContentRange(header != nullptr ? header->value : "");
    if (!range || range->first != out_.size()) {
      return Fail(ErrorKind::kFormat, file_.url, "bytes of another place", "those asked for",
                  "run again; the server or a proxy mixes its answers");
    }
    if (range->second >= 0 && range->second != file_.size) return WrongSize(file_, range->second);
    return {};
  }

  Status Take(std::span<const std::byte> bytes) {
    const int64_t there = out_.size() + static_cast<int64_t>(bytes.size());
    if (there > file_.size) return WrongSize(file_, there);
    HEED_TRY(out_.Write(bytes));
    digest_.Update(bytes);
    received_ += static_cast<int64_t>(bytes.size());
    on_bytes_(there);
    return {};
  }

  // Whether there is more than ever before.
  bool WentFurther() { return out_.size() > std::exchange(most_, std::max(most_, out_.size())); }

  Status Finish() {
    const std::string hash = digest_.Hex();
    if (hash == file_.hash) return out_.Commit();
    out_.Discard();
    return Fail(ErrorKind::kFormat, file_.url, "checksum " + hash, file_.hash,
                "what came was thrown away: run again");
  }

  void Discard() { out_.Discard(); }
  int64_t size() const { return out_.size(); }
  int64_t received() const { return received_; }
  bool whole() const { return out_.size() == file_.size; }

 private:
  const FileToFetch& file_;
  const std::function<void(int64_t)>& on_bytes_;
  AtomicFile out_;
  Digest digest_;
  int64_t most_ = 0, received_ = 0;
};

HttpClient::Attempt HttpClient::Continue(const std::string& url, Incoming* incoming) {
  if (incoming->whole()) return {HttpReply{.status = 200}};
  Exchange exchange;
  exchange.from = incoming->size();
  bool begun = false;
  exchange.sink = [&](std::span<const std::byte> bytes) -> Status {
    if (!std::exchange(begun, true)) HEED_TRY(incoming->CheckHead(curl_.get()));
    return incoming->Take(bytes);
  };
  Attempt attempt = Try(url, &exchange);
  attempt.further = incoming->WentFurther();
  if (!attempt.reply) return attempt;
  if (attempt.reply->status == kRangeBeyondEnd && exchange.from > 0) {
    const Status restarted = incoming->Restart();
    if (!restarted) return {tl::make_unexpected(restarted.error())};
    attempt.again = true;
  } else if (IsSuccess(attempt.reply->status) && !incoming->whole()) {
    const Status head = begun ? Status() : incoming->CheckHead(curl_.get());
    if (!head) return {tl::make_unexpected(head.error())};
    attempt.reply = Explain(CURLE_PARTIAL_FILE, url, "too few bytes", settings_.stall_seconds);
    attempt.again = true;
  }
  return attempt;
}

// The partial file's name stands for one content, so a range needs no If-Range; and a content
// network's ETag would not be the hub's.
Result<HttpReply> HttpClient::Fetch(const FileToFetch& file,
                                    const std::function<void(int64_t)>& on_bytes) {
  HEED_ASSIGN(AtomicFile out, AtomicFile::Resume(file.path, file.partial, file.overwrite));
  Incoming incoming(file, on_bytes, std::move(out));
  HEED_TRY(incoming.Begin());
  Result<HttpReply> reply = Persist(file.url, [&] { return Continue(file.url, &incoming); });
  if (!reply && reply.error().kind == ErrorKind::kFormat) incoming.Discard();
  if (!reply) return reply;
  if (!IsSuccess(reply->status)) {
    if (incoming.size() == 0) incoming.Discard();
    return reply;
  }
  HEED_TRY(incoming.Finish());
  reply->status = 200;
  reply->received = incoming.received();
  return reply;
}

}  // namespace heed
