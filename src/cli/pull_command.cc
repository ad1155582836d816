#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <optional>

#include "base/plural.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "model/hub.h"
#include "report/format.h"

namespace heed {
namespace {

struct PullSettings {
  std::string revision = "main";
  std::string out;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("revision", self.revision, "branch, tag or commit");
    visit("out", self.out, "folder to fill, in place of the cache");
  }
};

// "" when it is not set.
std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Where huggingface_hub keeps models, by its variables.
Result<std::string> CacheFolder() {
  if (const std::string hub = Environment("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string home = Environment("HF_HOME"); !home.empty()) return home + "/hub";
  std::string cache = Environment("XDG_CACHE_HOME");
  if (cache.empty()) {
    const std::string home = Environment("HOME");
    if (home.empty()) return BadRequest("HF_HOME", "nothing", "a folder", "or give --out FOLDER");
    cache = home + "/.cache";
  }
  return cache + "/huggingface/hub";
}

Result<HubRequest> RequestOf(const PullSettings& settings, const std::vector<std::string>& names,
                             bool overwrite) {
  if (names.size() != 1) {
    return BadRequest("OWNER/NAME", fmt::format("{} names", names.size()), "one model");
  }
  HubRequest request;
  request.model = names[0];
  request.revision = settings.revision;
  request.out = settings.out;
  request.overwrite = overwrite;
  std::string endpoint = Environment("HF_ENDPOINT");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (!endpoint.empty()) request.endpoint = endpoint;
  if (request.out.empty()) {
    HEED_ASSIGN(request.cache, CacheFolder());
  }
  return request;
}

Result<Verdict> RunPull(Session& session, const PullSettings& settings,
                        const std::vector<std::string>& names) {
  if (session.options.Given("out") && settings.out.empty()) {
    return BadRequest("--out", "an empty name", "a folder");
  }
  HEED_ASSIGN(const HubRequest request, RequestOf(settings, names, session.globals.overwrite));
  InterruptGuard guard;
  HttpSettings http;
  http.token = Environment("HF_TOKEN");
  http.should_stop = [&guard] { return guard.interrupted(); };
  std::optional<Progress> progress;
  HubEvents events;
  events.on_progress = [&](int64_t done, int64_t total) {
    if (!progress) {
      progress.emplace(session.terminal, "pulling", "B", total);
      progress->StartAt(done);
    }
    progress->Update(done, {});
  };
  HEED_ASSIGN(const PulledModel pulled, PullModel(request, http, events));
  progress.reset();
  session.terminal.Note(fmt::format("{}: {} file{}, {}, of which {} came now", request.model,
                                    pulled.files.size(), Plural(std::ssize(pulled.files)),
                                    FormatBytes(static_cast<double>(pulled.bytes)),
                                    FormatBytes(static_cast<double>(pulled.downloaded))));
  HEED_TRY(session.terminal.Document(DocumentText({{"path", pulled.path},
                                                   {"folder", pulled.folder},
                                                   {"files", pulled.files},
                                                   {"bytes", pulled.bytes},
                                                   {"downloaded", pulled.downloaded}})));
  HEED_TRY(session.terminal.Say(pulled.path + "\n"));
  return Verdict::kDone;
}

}  // namespace

Command PullCommand() {
  Command command;
  command.name = "pull";
  command.summary = "fetch a model from the Hugging Face hub";
  command.explanation =
      "Fetches config.json, the vocabulary and the safetensors of a model, or one GGUF file of it, "
      "checks sizes and checksums, and prints the path that other commands take as MODEL. The "
      "files lie in the cache that Hugging Face's programs share (HF_HOME, by default "
      "~/.cache/huggingface), or in --out. A cut download goes on when the command is run again. "
      "HF_TOKEN opens gated models, HF_ENDPOINT names another hub, https_proxy a proxy.";
  command.example =
      "heed pull openai-community/gpt2\n"
      "heed pull Qwen/Qwen2.5-0.5B --out models/qwen\n"
      "heed generate \"$(heed pull OWNER/NAME/FILE.gguf)\" --prompt \"Once upon a time\"";
  command.takes_overwrite = true;
  command.declare = [](Options& options) -> CommandBody {
    auto settings = std::make_shared<PullSettings>();
    auto names = std::make_shared<std::vector<std::string>>();
    options.BindArguments("OWNER/NAME", "a model's name on the hub, or OWNER/NAME/FILE.gguf",
                          names.get());
    options.Bind("Source and place", *settings);
    return [settings, names](Session& session) { return RunPull(session, *settings, *names); };
  };
  return command;
}

}  // namespace heed
