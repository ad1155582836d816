// A hub of one model, "them/tiny", with its faults to be switched on.
#pragma once

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "io/digest.h"
#include "support/http_server.h"

namespace heed {

inline std::string HashOf(Digest digest, const std::string& text) {
  digest.Update(std::as_bytes(std::span(text)));
  return digest.Hex();
}
inline std::string Sha256Of(const std::string& text) { return HashOf(Digest::Sha256(), text); }
inline std::string GitHashOf(const std::string& text) {
  return HashOf(Digest::GitBlob(static_cast<int64_t>(text.size())), text);
}

class FakeHub {
 public:
  explicit FakeHub(std::map<std::string, std::string> model) : files(std::move(model)) {}

  // All of these are set between requests alone.
  std::map<std::string, std::string> files;  // by their path; *.safetensors and *.gguf are LFS's
  std::string commit = "0123456789abcdef0123456789abcdef01234567";
  std::string revision = "main";
  std::string token;      // without it, 401
  int api_status = 200;   // of the listing
  int file_status = 200;  // of every file
  int failures = 0;       // so many 500s come first
  std::string listing;    // in place of the true one
  size_t page = 1000;     // files in a page of the listing
  std::string redirect;   // where LFS files lie, with %s for the path: an address
  bool ranges = true;
  // Of the next answers with an LFS file: what is done to it.
  std::vector<std::function<void(HttpAnswer*)>> faults;

  std::string address() const { return server_.address(); }
  bool ready() const { return server_.ready(); }
  // Requests whose target has this in it.
  std::vector<HttpRequest> Requests(const std::string& part) const {
    std::vector<HttpRequest> found;
    for (const HttpRequest& request : server_.requests()) {
      if (request.target.find(part) != std::string::npos) found.push_back(request);
    }
    return found;
  }

  static bool IsLarge(const std::string& path) {
    return path.ends_with(".safetensors") || path.ends_with(".gguf");
  }

 private:
  HttpAnswer Answer(const HttpRequest& request) {
    if (failures > 0 && failures-- > 0) return {500, {}, "trouble"};
    const auto authorization = request.headers.find("authorization");
    if (!token.empty() &&
        (authorization == request.headers.end() || authorization->second != "Bearer " + token)) {
      return {401, {{"X-Error-Code", "GatedRepo"}}, "who are you?"};
    }
    const std::string tree = "/api/models/them/tiny/tree/" + revision + "?recursive=true";
    const std::string resolve = "/them/tiny/resolve/" + revision + "/";
    if (request.target.starts_with(tree)) return Tree(request.target.substr(tree.size()));
    if (!request.target.starts_with(resolve)) return {404, {}, "not here"};
    return File(request.target.substr(resolve.size()), request);
  }

  HttpAnswer Tree(const std::string& cursor) {
    if (api_status != 200) return {api_status, {}, "no"};
    if (!listing.empty()) return {200, {}, listing};
    size_t first = 0;
    if (cursor.starts_with("&cursor=")) first = std::stoul(cursor.substr(8));
    nlohmann::json list = nlohmann::json::array();
    size_t at = 0;
    for (const auto& [path, text] : files) {
      if (at++ < first || at > first + page) continue;
      nlohmann::json entry = {
          {"type", "file"}, {"path", path}, {"size", text.size()}, {"oid", GitHashOf(text)}};
      if (IsLarge(path)) {
        entry["oid"] = GitHashOf("pointer");
        entry["lfs"] = {{"oid", Sha256Of(text)}, {"size", text.size()}, {"pointerSize", 134}};
      }
      list.push_back(entry);
    }
    list.push_back({{"type", "directory"}, {"path", "onnx"}, {"oid", GitHashOf("")}, {"size", 0}});
    HttpAnswer answer{200, {}, list.dump()};
    if (first + page < files.size()) {
      answer.headers["Link"] = "<" + address() + "/api/models/them/tiny/tree/" + revision +
                               "?recursive=true&cursor=" + std::to_string(first + page) +
                               ">; rel=\"next\"";
    }
    return answer;
  }

  HttpAnswer File(const std::string& path, const HttpRequest& request) {
    const auto file = files.find(path);
    if (file == files.end()) return {404, {{"X-Error-Code", "EntryNotFound"}}, "not here"};
    if (file_status != 200) return {file_status, {}, "no"};
    HttpAnswer answer{200, {{"X-Repo-Commit", commit}}, file->second};
    if (!IsLarge(path)) return answer;
    answer.headers["X-Linked-Etag"] = '"' + Sha256Of(file->second) + '"';
    if (!redirect.empty()) {
      answer.status = 302;
      answer.headers["Location"] = redirect + path;
      answer.body = "moved";
      return answer;
    }
    if (request.method == "HEAD") return answer;
    const auto range = request.headers.find("range");
    if (ranges && range != request.headers.end()) {
      const size_t from = std::stoul(range->second.substr(std::string("bytes=").size()));
      const std::string size = std::to_string(answer.body.size());
      if (from >= answer.body.size()) return {416, {{"Content-Range", "bytes */" + size}}, ""};
      answer.status = 206;
      answer.headers["Content-Range"] = "bytes " + std::to_string(from) + "-" +
                                        std::to_string(answer.body.size() - 1) + "/" + size;
      answer.body.erase(0, from);
    }
    if (!faults.empty()) {
      faults.front()(&answer);
      faults.erase(faults.begin());
    }
    return answer;
  }

  HttpServer server_{[this](const HttpRequest& request) { return Answer(request); }};
};

}  // namespace heed
