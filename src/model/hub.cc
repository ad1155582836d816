#include "model/hub.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "base/json.h"
#include "base/plural.h"
#include "base/quote.h"
#include "io/digest.h"
#include "io/file.h"
#include "model/folder.h"

namespace heed {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMostIndexBytes = size_t{64} << 20;
constexpr size_t kMostPages = 100;  // of a listing, a thousand files each
constexpr size_t kLongestRepoPart = 96;
constexpr const char* kConfig = "config.json";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kBeside[] = {"generation_config.json",
                                   "tokenizer_config.json",
                                   "tokenizer.json",
                                   "tokenizer.model",
                                   "vocab.json",
                                   "merges.txt"};

tl::unexpected<Error> BadTree(const std::string& where, std::string found, std::string expected) {
  return Fail(ErrorKind::kFormat, where, std::move(found), std::move(expected),
              "is HF_ENDPOINT a hub's address?");
}

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// A relative path that stays below its folder and can be shown.
bool IsInnerPath(std::string_view path) {
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') return false;
  }
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = end + 1;
  }
  return true;
}

// Owners and names as the hub allows them; "--" would be ambiguous in the cache.
bool IsRepoPart(std::string_view part) {
  for (const char c : part) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       c == '-' || c == '_' || c == '.';
    if (!plain) return false;
  }
  return !part.empty() && part.size() <= kLongestRepoPart && part.front() != '.' &&
         part.front() != '-' && part.find("..") == part.npos && part.find("--") == part.npos;
}

std::string PercentEncoded(std::string_view text, std::string_view plain) {
  std::string out;
  for (const char c : text) {
    const bool kept = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                      plain.find(c) != plain.npos;
    out += kept ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

const HubFile* Find(std::span<const HubFile> files, std::string_view path) {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const HubFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

Result<HubFile> ParseEntry(const Json& entry, const std::string& where) {
  const auto path = entry.find("path");
  if (path == entry.end() || !path->is_string() || !IsInnerPath(path->get<std::string>())) {
    return BadTree(where, path == entry.end() ? "a file without path" : "a path " + path->dump(),
                   "one below the repository's folder");
  }
  HubFile file;
  file.path = path->get<std::string>();
  const auto lfs = entry.find("lfs");
  const bool large = lfs != entry.end() && lfs->is_object();
  const Json& facts = large ? *lfs : entry;
  const auto size = facts.find("size"), oid = facts.find("oid");
  if (size == facts.end() || !size->is_number_integer() || *size < 0 ||
      *size > std::numeric_limits<int64_t>::max()) {
    return BadTree(where + ", " + Quoted(file.path), "no size", "bytes");
  }
  file.size = size->get<int64_t>();
  if (oid == facts.end() || !oid->is_string() ||
      !IsHex(oid->get_ref<const std::string&>(), large ? 64 : 40)) {
    return BadTree(where + ", " + Quoted(file.path), "no checksum",
                   large ? "lfs.oid, a SHA-256" : "oid, a SHA-1");
  }
  file.hash = oid->get<std::string>();
  return file;
}

// The address in `<ADDRESS>; rel="next"` of a Link header (RFC 8288); "" without one.
std::string NextPage(const HttpReply& reply) {
  const auto link = reply.headers.find("link");
  if (link == reply.headers.end()) return "";
  const std::string& text = link->second;
  const size_t open = text.find('<'), close = text.find('>');
  const size_t next = text.find("rel=\"next\"");
  if (open == text.npos || close == text.npos || next == text.npos || open > close) return "";
  return text.substr(open + 1, close - open - 1);
}

tl::unexpected<Error> System(const std::string& path, const std::error_code& error) {
  return Fail(ErrorKind::kIo, path, "cannot be made: " + error.message());
}

}  // namespace

Result<std::vector<HubFile>> ParseHubTree(std::string_view text, const std::string& where) {
  HEED_ASSIGN(const Json tree, ParseJson(text, where));
  if (!tree.is_array()) return BadTree(where, tree.type_name(), "a list of files");
  std::vector<HubFile> files;
  std::set<std::string> paths;
  for (const Json& entry : tree) {
    if (!entry.is_object()) return BadTree(where, entry.type_name(), "an object for each file");
    if (entry.value("type", Json()) == "directory") continue;
    HEED_ASSIGN(HubFile file, ParseEntry(entry, where));
    if (!paths.insert(file.path).second) {
      return BadTree(where, "twice " + Quoted(file.path), "each file once");
    }
    files.push_back(std::move(file));
  }
  return files;
}

namespace {

class Pull {
 public:
  Pull(const HubRequest& request, const HttpSettings& http, const HubEvents& events)
      : request_(request), events_(events), has_token_(!http.token.empty()), client_(http) {}

  Result<PulledModel> Run() {
    HEED_TRY(CheckRequest());
    HEED_TRY(List());
    HEED_TRY(ChooseSmall());
    HEED_TRY(Prepare());
    for (const HubFile& file : small_) HEED_TRY(Place(file));
    HEED_TRY(ChooseWeights());
    HEED_TRY(CheckRoom());
    events_.on_progress(done_, total_);
    for (const HubFile& file : weights_) HEED_TRY(Place(file));
    HEED_TRY(WriteRef());
    result_.path = gguf_.empty() ? result_.folder : result_.folder + "/" + gguf_;
    return result_;
  }

 private:
  bool in_cache() const { return request_.out.empty(); }

  Status CheckRequest() {
    const std::string& model = request_.model;
    const size_t owner = model.find('/');
    const size_t name = owner == model.npos ? model.npos : model.find('/', owner + 1);
    repo_ = model.substr(0, name);
    if (name != model.npos) gguf_ = model.substr(name + 1);
    if (owner == model.npos || !IsRepoPart(model.substr(0, owner)) ||
        !IsRepoPart(repo_.substr(owner + 1))) {
      return BadRequest("OWNER/NAME", Quoted(model), "a model's name on the hub",
                        "as in openai-community/gpt2");
    }
    if (name != model.npos && (!IsInnerPath(gguf_) || !gguf_.ends_with(".gguf"))) {
      return BadRequest("OWNER/NAME/FILE", Quoted(model), "a file that ends in .gguf");
    }
    if (!IsInnerPath(request_.revision)) {
      return BadRequest("--revision", Quoted(request_.revision), "a branch, tag or commit");
    }
    if (!request_.endpoint.starts_with("https://") && !request_.endpoint.starts_with("http://")) {
      return BadRequest("HF_ENDPOINT", Quoted(request_.endpoint), "an address with https://");
    }
    return {};
  }

  std::string Revision() const { return PercentEncoded(request_.revision, "-._~"); }
  std::string AddressOf(const HubFile& file) const {
    return fmt::format("{}/{}/resolve/{}/{}", request_.endpoint, repo_, Revision(),
                       PercentEncoded(file.path, "-._~/"));
  }

  // What a status that is no success means here.
  Status CheckReply(const HttpReply& reply, const std::string& where) const {
    if (reply.status == 200) return {};
    const std::string found = fmt::format("HTTP {}", reply.status);
    if (reply.status == 401 || reply.status == 403) {
      return has_token_ ? BadRequest(where, found + ": not for the owner of this HF_TOKEN", "",
                                     "see the token, and accept the terms on the model's page")
                        : BadRequest(where, found + ": no such model, or a gated or private one",
                                     "", "see the name, and set HF_TOKEN to a token that may read");
    }
    if (reply.status == 404) {
      return BadRequest(where, found + ": no such model or revision", "",
                        "see the name, and --revision");
    }
    if (reply.status == 429) {
      return Fail(ErrorKind::kIo, where, found + ": too many requests", "", "wait some minutes");
    }
    return Fail(ErrorKind::kIo, where, found, "HTTP 200",
                "run the same command again later: what came stays");
  }

  Status List() {
    std::string url = fmt::format("{}/api/models/{}/tree/{}?recursive=true", request_.endpoint,
                                  repo_, Revision());
    for (size_t page = 0; !url.empty(); ++page) {
      HEED_ASSIGN(const HttpReply reply, client_.Get(url));
      HEED_TRY(CheckReply(reply, repo_ + ", revision " + request_.revision));
      HEED_ASSIGN(const std::vector<HubFile> files, ParseHubTree(reply.body, url));
      files_.insert(files_.end(), files.begin(), files.end());
      const std::string next = NextPage(reply);
      // The token must not leave for another host, and the list must end.
      if (page >= kMostPages || (!next.empty() && !next.starts_with(request_.endpoint + "/"))) {
        return BadTree(url, "a next page " + Quoted(next), "at most 100 of the same hub");
      }
      url = next;
    }
    return {};
  }

  // The names of `files_` that end so, for a hint.
  std::string Names(std::string_view ending) const {
    std::vector<std::string> names;
    for (const HubFile& file : files_) {
      if (file.path.ends_with(ending) && names.size() < 4) names.push_back(file.path);
    }
    return fmt::format("{}", fmt::join(names, ", "));
  }

  tl::unexpected<Error> Missing(const std::string& name) const {
    const std::string others = name == gguf_ ? Names(".gguf") : "";
    return BadRequest(repo_, "no " + name, others.empty() ? "a file of that name" : others);
  }

  // The files before the weights.
  Status ChooseSmall() {
    if (!gguf_.empty()) {
      const HubFile* file = Find(files_, gguf_);
      if (file == nullptr) return Missing(gguf_);
      first_ = *file;
      return {};
    }
    const HubFile* config = Find(files_, kConfig);
    sharded_ = Find(files_, kSingle) == nullptr;
    if (config == nullptr || (sharded_ && Find(files_, kIndex) == nullptr)) {
      const std::string gguf = Names(".gguf");
      return Fail(ErrorKind::kFormat, repo_,
                  config == nullptr ? "no config.json" : "no model.safetensors",
                  "a model's folder with both",
                  gguf.empty() ? "choose a model that has safetensors"
                               : "name one of " + gguf + " behind " + repo_ + "/");
    }
    first_ = *config;
    small_.push_back(first_);
    for (const char* name : kBeside) {
      if (const HubFile* file = Find(files_, name)) small_.push_back(*file);
    }
    if (sharded_) small_.push_back(*Find(files_, kIndex));
    return {};
  }

  Status ChooseWeights() {
    std::vector<std::string> names = {gguf_.empty() ? kSingle : gguf_};
    if (sharded_) {
      const std::string index = PathOf(*Find(files_, kIndex));
      HEED_ASSIGN(const std::string text, ReadFile(index, kMostIndexBytes));
      HEED_ASSIGN(names, ParseShardIndex(text, index));
    }
    for (const std::string& name : names) {
      const HubFile* file = Find(files_, name);
      if (file == nullptr) return Missing(name);
      weights_.push_back(*file);
    }
    for (const auto* list : {&small_, &weights_}) {
      for (const HubFile& file : *list) total_ += file.size;
    }
    return {};
  }

  // The folders, held until the end.
  Status Prepare() {
    if (!in_cache()) {
      result_.folder = request_.out;
      HEED_TRY(MakeFolder(request_.out));
      HEED_ASSIGN(lock_, FolderLock::Take(request_.out));
      return ClearOfOthers();
    }
    std::string name = repo_;
    name.replace(name.find('/'), 1, "--");
    root_ = (fs::path(request_.cache) / ("models--" + name)).string();
    blobs_ = root_ + "/blobs";
    HEED_TRY(FindCommit());
    result_.folder = root_ + "/snapshots/" + commit_;
    HEED_TRY(MakeFolder(blobs_));
    HEED_TRY(MakeFolder(result_.folder));
    HEED_ASSIGN(lock_, FolderLock::Take(blobs_));
    return {};
  }

  // Files of another model would be read with those of this one.
  Status ClearOfOthers() {
    if (!gguf_.empty()) return {};
    std::vector<const char*> names(std::begin(kBeside), std::end(kBeside));
    names.insert(names.end(), {kSingle, kIndex});
    for (const char* name : names) {
      const std::string path = request_.out + "/" + name;
      std::error_code error;
      const bool ours =
          Find(small_, name) != nullptr || (!sharded_ && name == std::string(kSingle));
      if (ours || !fs::exists(path, error)) continue;
      if (!request_.overwrite) {
        return Fail(ErrorKind::kIo, path, "a file of another model", "a folder for this one",
                    "choose another --out, or give --overwrite");
      }
      fs::remove(path, error);
    }
    return {};
  }

  Status FindCommit() {
    const std::string address = AddressOf(first_);
    HEED_ASSIGN(const HttpReply reply, client_.Head(address));
    HEED_TRY(CheckReply(reply, address));
    const auto commit = reply.headers.find("x-repo-commit");
    if (commit == reply.headers.end() || !IsHex(commit->second, 40)) {
      return Fail(ErrorKind::kFormat, address, "no header X-Repo-Commit",
                  "the commit, which names a folder of the cache", "give --out FOLDER");
    }
    commit_ = commit->second;
    return {};
  }

  std::string PathOf(const HubFile& file) const {
    return in_cache() ? blobs_ + "/" + file.hash : request_.out + "/" + file.path;
  }
  std::string PartialOf(const HubFile& file) const {
    return in_cache() ? blobs_ + "/" + file.hash + ".incomplete"
                      : request_.out + "/." + file.hash + ".incomplete";
  }

  Status CheckRoom() {
    int64_t needed = 0;
    std::error_code error;
    for (const HubFile& file : weights_) {
      const auto there = [&](const std::string& path) {
        const uintmax_t size = fs::file_size(path, error);
        return error ? 0 : static_cast<int64_t>(size);
      };
      if (there(PathOf(file)) != file.size) {
        needed += std::max<int64_t>(0, file.size - there(PartialOf(file)));
      }
    }
    const fs::space_info space = fs::space(in_cache() ? blobs_ : request_.out, error);
    if (error || space.available >= static_cast<uintmax_t>(needed)) return {};
    return Fail(ErrorKind::kIo, result_.folder,
                fmt::format("{} byte{} free", space.available,
                            Plural(static_cast<int64_t>(space.available))),
                fmt::format("{}", needed), "free some space, or choose another --out or HF_HOME");
  }

  // Sees to it that the file is there, whole.
  Status Place(const HubFile& file) {
    const std::string path = PathOf(file);
    if (!HasContent(path, file.size, file.hash)) HEED_TRY(Fetch(file, path));
    if (in_cache()) HEED_TRY(Link(file));
    result_.files.push_back(file.path);
    result_.bytes += file.size;
    done_ += file.size;
    if (total_ > 0) events_.on_progress(done_, total_);
    return {};
  }

  Status Fetch(const HubFile& file, const std::string& path) {
    HEED_TRY(MakeFolder(fs::path(path).parent_path().string()));
    // A blob whose content is not that of its name is damaged.
    const FileToFetch fetched = {AddressOf(file), file.size,
                                 file.hash,       path,
                                 PartialOf(file), in_cache() || request_.overwrite};
    HEED_ASSIGN(const HttpReply reply, client_.Fetch(fetched, [&](int64_t there) {
      if (total_ > 0) events_.on_progress(done_ + there, total_);
    }));
    result_.downloaded += reply.received;
    return CheckReply(reply, fetched.url);
  }

  // Links snapshots/COMMIT/PATH to the blob, by a relative path.
  Status Link(const HubFile& file) const {
    const fs::path link = fs::path(result_.folder) / file.path;
    std::string target = "../../blobs/" + file.hash;
    for (const char c : file.path) {
      if (c == '/') target.insert(0, "../");
    }
    std::error_code error;
    if (fs::read_symlink(link, error) == target) return {};
    HEED_TRY(MakeFolder(link.parent_path().string()));
    const fs::path fresh = link.parent_path() / ("." + file.hash + ".heed-tmp");
    fs::remove(fresh, error);
    fs::create_symlink(target, fresh, error);
    if (!error) fs::rename(fresh, link, error);
    return error ? System(link.string(), error) : Status();
  }

  Status WriteRef() const {
    if (!in_cache() || request_.revision == commit_) return {};
    const fs::path ref = fs::path(root_) / "refs" / request_.revision;
    HEED_TRY(MakeFolder(ref.parent_path().string()));
    const std::string_view text = commit_;
    return WriteFileAtomically(ref.string(), {&text, 1}, true);
  }

  const HubRequest& request_;
  const HubEvents& events_;
  bool has_token_;
  HttpClient client_;
  std::string repo_, gguf_;     // "OWNER/NAME"; the file asked for, or ""
  std::vector<HubFile> files_;  // of the repository
  HubFile first_;               // that is always taken
  std::vector<HubFile> small_, weights_;
  bool sharded_ = false;
  std::string root_, blobs_, commit_;  // in the cache
  FolderLock lock_;
  int64_t done_ = 0, total_ = 0;  // bytes; the total is 0 until the weights are known
  PulledModel result_;
};

Status CheckToken(const std::string& token) {
  for (const char c : token) {
    if (c <= ' ' || c >= 0x7f) {
      return BadRequest("HF_TOKEN", "a space or a character that is not ASCII", "hf_...");
    }
  }
  return {};
}

}  // namespace

Result<PulledModel> PullModel(const HubRequest& request, const HttpSettings& http,
                              const HubEvents& events) {
  HEED_TRY(CheckToken(http.token));
  return Pull(request, http, events).Run();
}

}  // namespace heed
