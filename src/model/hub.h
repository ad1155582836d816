// Models of a hub that speaks as huggingface.co does, into the cache that Hugging Face's own
// programs share, or into a folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "io/download.h"

namespace heed {

// A file of a repository.
struct HubFile {
  std::string path;  // relative, without ".."
  int64_t size = 0;  // bytes
  std::string hash;  // SHA-256 of a large file (LFS), git's SHA-1 of a small one; see Digest::Like
};

// The files in an answer of /api/models/OWNER/NAME/tree/REVISION. Errors (kFormat): not JSON, no
// list, an entry without path, size or checksum; a path that leads out of the folder or that has
// control characters; one twice.
Result<std::vector<HubFile>> ParseHubTree(std::string_view text, const std::string& where);

struct HubRequest {
  std::string model;  // OWNER/NAME, or OWNER/NAME/FILE.gguf
  std::string revision = "main";
  std::string endpoint = "https://huggingface.co";
  std::string cache;       // the folder of models--OWNER--NAME
  std::string out;         // a folder to fill instead
  bool overwrite = false;  // what is in the way in `out`
};

struct HubEvents {
  // Bytes of the weights that are there, of all.
  std::function<void(int64_t done, int64_t total)> on_progress = [](int64_t, int64_t) {};
};

struct PulledModel {
  std::string path;  // for LoadModel: the folder, or the .gguf
  std::string folder;
  std::vector<std::string> files;     // relative to it
  int64_t bytes = 0, downloaded = 0;  // of the files; that came this time
};

// Fetches config.json, the vocabulary, then the weights (model.safetensors, or its shards with
// their index), or one GGUF file. Files that are there already and whole stay; each appears under
// its name when its size and checksum are those that the hub lists.
//
// The cache is laid out as huggingface_hub does: blobs/HASH, snapshots/COMMIT with links to them,
// refs/REVISION with the commit.
//
// Errors: kRequest for a name or revision that cannot be, or that the hub does not know or show
// (401, 403, 404); kFormat for what is no model in safetensors, and for answers that are not a
// hub's; those of HttpClient.
Result<PulledModel> PullModel(const HubRequest& request, const HttpSettings& http,
                              const HubEvents& events = {});

}  // namespace heed
