// heed pull as a user meets it, from a hub on this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/fake_hub.h"
#include "support/shell.h"

namespace heed {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::json;

class PullCli : public testing::Test {
 protected:
  // With a clean environment but for the hub's address.
  ShellResult Run(const std::string& line, const std::string& variables = "HF_HOME=home") {
    return Shell(folder_.path(),
                 "unset HF_HOME HF_HUB_CACHE HF_TOKEN XDG_CACHE_HOME; export no_proxy=127.0.0.1 "
                 "HF_ENDPOINT=" +
                     hub_.address() + "/ " + variables + "; " + line);
  }
  // Makes a model and puts it on the hub.
  void Train() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "a cab; bad ace\n";
    WriteText(folder_ / "t.txt", text);
    const ShellResult result = Run(
        "$heed train t.txt --out run --max-iters 2 --eval-iters 1 --quiet --n-layer 1 --n-head 2 "
        "--n-embd 16 --block-size 16 --position rope --norm rmsnorm --mlp swiglu --no-bias && "
        "$heed convert run tiny.gguf --quiet");
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
      hub_.files[name] = ReadText(folder_ / ("run/" + std::string(name)));
    }
    hub_.files["tiny.gguf"] = ReadText(folder_ / "tiny.gguf");
  }

  FakeHub hub_{{{"config.json", "{}"}, {"model.safetensors", "weights"}}};
  TemporaryFolder folder_;
};

TEST_F(PullCli, APulledModelGenerates) {
  Train();
  const std::string generate = " --prompt a --temperature 0 --max-tokens 8 --quiet --json";
  const ShellResult own = Run("$heed generate run" + generate);
  ASSERT_EQ(own.exit_code, 0) << own.err;
  const Json tokens = Json::parse(own.out)["samples"][0]["tokens"];
  for (const char* pull : {"them/tiny", "them/tiny/tiny.gguf", "them/tiny --out mine"}) {
    const ShellResult result =
        Run("$heed generate \"$($heed pull " + std::string(pull) + " --quiet)\"" + generate);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(Json::parse(result.out)["samples"][0]["tokens"], tokens) << pull;
    EXPECT_EQ(result.err, "");
  }
  EXPECT_EQ(Run("$heed eval mine t.txt --quiet").exit_code, 0);
}

TEST_F(PullCli, JsonSaysWhatCame) {
  const ShellResult result = Run("$heed pull them/tiny --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out, nullptr, false);
  const std::string folder = "home/hub/models--them--tiny/snapshots/" + hub_.commit;
  EXPECT_EQ(json["folder"], folder);
  EXPECT_EQ(json["path"], folder);
  EXPECT_EQ(json["files"], Json({"config.json", "model.safetensors"}));
  EXPECT_EQ(json["bytes"], 9);
  EXPECT_EQ(json["downloaded"], 9);
  EXPECT_EQ(Json::parse(Run("$heed pull them/tiny --json").out)["downloaded"], 0);
  EXPECT_EQ(Run("$heed pull them/tiny").out, folder + "\n");
}

TEST_F(PullCli, TheCacheLiesWhereHuggingFaceLooks) {
  const auto out = [&](const std::string& variables) {
    const ShellResult result = Run("$heed pull them/tiny --quiet", variables);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(out("HF_HUB_CACHE=a HF_HOME=b XDG_CACHE_HOME=c HOME=d"), StartsWith("a/models--"));
  EXPECT_THAT(out("HF_HOME=b XDG_CACHE_HOME=c HOME=d"), StartsWith("b/hub/models--"));
  EXPECT_THAT(out("XDG_CACHE_HOME=c HOME=d"), StartsWith("c/huggingface/hub/models--"));
  EXPECT_THAT(out("HOME=d"), StartsWith("d/.cache/huggingface/hub/models--"));
  const ShellResult nowhere = Run("$heed pull them/tiny", "HOME=");
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("HF_HOME"));
}

TEST_F(PullCli, TheTokenIsTheEnvironments) {
  hub_.token = "hf_right";
  const ShellResult refused = Run("$heed pull them/tiny");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.err,
            "heed: them/tiny, revision main: HTTP 401: no such model, or a gated or private one; "
            "see the name, and set HF_TOKEN to a token that may read\n");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "home"));
  EXPECT_EQ(Run("$heed pull them/tiny", "HF_HOME=home HF_TOKEN=hf_right").exit_code, 0);
}

TEST_F(PullCli, RequestsThatCannotBe) {
  for (const char* arguments : {"", "a b", "tiny", "them/tiny --out ''", "them/tiny --nothing"}) {
    const ShellResult result = Run("$heed pull " + std::string(arguments));
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.err.find('\n') + 1, result.err.size()) << result.err;
  }
}

// What a user's Ctrl-C, and a limit of the system, leave.
TEST_F(PullCli, AStoppedPullGoesOn) {
  const std::string weights = std::string(50000, 'w');
  hub_.files["model.safetensors"] = weights;
  hub_.faults = {[](HttpAnswer* a) { a->hang_after = 20000; }};
  const std::string partial =
      "home/hub/models--them--tiny/blobs/" + Sha256Of(weights) + ".incomplete";
  const ShellResult stopped =
      Run("$heed pull them/tiny & child=$!; until [ -s " + partial +
          " ]; do sleep 0.01; done; kill -TERM $child; wait $child; exit $?");
  EXPECT_EQ(stopped.exit_code, 2);
  EXPECT_THAT(stopped.err, HasSubstr("stopped; run the same command again"));
  EXPECT_EQ(std::filesystem::file_size(folder_ / partial), 20000u);
  const ShellResult small = Run("ulimit -f 60; $heed pull them/tiny");  // blocks of 512 bytes
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_THAT(small.err, HasSubstr("cannot be written: File too large"));
  const ShellResult result = Run("$heed pull them/tiny --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["downloaded"], 50000 - 60 * 512);
}

}  // namespace
}  // namespace heed
