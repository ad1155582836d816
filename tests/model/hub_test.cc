// Models of a hub of the test's own, into the cache and into folders.
#include "model/hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "io/file.h"
#include "support/fake_hub.h"
#include "support/shell.h"

namespace heed {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

const std::string kSha1(40, 'a');
const std::string kSha256(64, 'b');

std::string TreeError(const std::string& text) {
  const auto files = ParseHubTree(text, "tree");
  EXPECT_FALSE(files) << text;
  return files ? "" : files.error().Message();
}

TEST(HubTree, SmallAndLargeFiles) {
  const auto files = ParseHubTree(
      R"([{"type":"directory","oid":"x","size":0,"path":"onnx"},)"
      R"({"type":"file","oid":")" +
          kSha1 + R"(","size":665,"path":"config.json"},{"type":"file","oid":")" + kSha1 +
          R"(","size":5,"lfs":{"oid":")" + kSha256 +
          R"(","size":6000000000,"pointerSize":135},"path":"a/b.gguf","xetHash":"y"}])",
      "tree");
  ASSERT_TRUE(files) << files.error().Message();
  ASSERT_EQ(files->size(), 2u);
  EXPECT_EQ((*files)[0].path, "config.json");
  EXPECT_EQ((*files)[0].size, 665);
  EXPECT_EQ((*files)[0].hash, kSha1);
  EXPECT_EQ((*files)[1].path, "a/b.gguf");
  EXPECT_EQ((*files)[1].size, 6000000000);
  EXPECT_EQ((*files)[1].hash, kSha256);
}

TEST(HubTree, WhatIsNoListIsRefused) {
  EXPECT_THAT(TreeError("<html>"), HasSubstr("JSON"));
  EXPECT_THAT(TreeError("{}"), HasSubstr("a list of files"));
  EXPECT_THAT(TreeError("[3]"), HasSubstr("an object for each file"));
  EXPECT_THAT(TreeError(R"([{"size":1,"oid":")" + kSha1 + "\"}]"), HasSubstr("without path"));
  EXPECT_THAT(TreeError(R"([{"path":7,"size":1,"oid":")" + kSha1 + "\"}]"), HasSubstr("a path 7"));
}

TEST(HubTree, PathsThatLeadElsewhereAreRefused) {
  for (const char* path : {"../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/.", "a/", "..",
                           "a\\\\b", "a\\nb", "a\\u001b[2J", "\\u007f"}) {
    EXPECT_THAT(
        TreeError(R"([{"path":")" + std::string(path) + R"(","size":1,"oid":")" + kSha1 + "\"}]"),
        HasSubstr("one below the repository's folder"))
        << path;
  }
  const std::string twice = R"({"path":"a","size":1,"oid":")" + kSha1 + "\"}";
  EXPECT_THAT(TreeError("[" + twice + "," + twice + "]"), HasSubstr("twice"));
}

TEST(HubTree, SizesAndChecksumsAreNeeded) {
  const auto error = [](const std::string& rest) {
    return TreeError(R"([{"path":"a",)" + rest + "}]");
  };
  const std::string oid = R"("oid":")" + kSha1 + '"';
  for (const char* size : {"-1", "1.5", "\"7\"", "null", "18446744073709551615"}) {
    EXPECT_THAT(error(oid + R"(,"size":)" + size), HasSubstr("no size")) << size;
  }
  EXPECT_THAT(error(oid), HasSubstr("no size"));
  EXPECT_THAT(error(R"("size":1)"), HasSubstr("no checksum"));
  EXPECT_THAT(error(R"("size":1,"oid":"../../etc")"), HasSubstr("no checksum"));
  EXPECT_THAT(error(R"("size":1,"oid":")" + kSha256 + '"'), HasSubstr("oid, a SHA-1"));
  EXPECT_THAT(error(oid + R"(,"size":1,"lfs":{"size":9,"oid":")" + kSha1 + "\"}"),
              HasSubstr("a SHA-256"));
}

// Bytes of a good listing changed anywhere are a listing or an error, whose paths stay inside.
RC_GTEST_PROP(HubTree, ChangedBytesAreAListOrAnError, ()) {
  std::string text = R"([{"type":"file","path":"a/b","size":12,"oid":")" + kSha1 +
                     R"("},{"path":"c","lfs":{"oid":")" + kSha256 + R"(","size":3}}])";
  const int changes = *rc::gen::inRange(1, 4);
  for (int i = 0; i < changes; ++i) {
    text[*rc::gen::inRange<size_t>(0, text.size())] = *rc::gen::arbitrary<char>();
  }
  const auto files = ParseHubTree(text, "tree");
  if (!files) return RC_ASSERT(!files.error().Message().empty());
  for (const HubFile& file : *files) {
    RC_ASSERT(file.size >= 0);
    RC_ASSERT(("/" + file.path + "/").find("/../") == std::string::npos);
    RC_ASSERT(file.path.front() != '/');
  }
}

class Hub : public testing::Test {
 protected:
  Hub() {
    setenv("no_proxy", "127.0.0.1", 1);
    http_.tries = 2;
    http_.first_wait_s = 0.01;
  }
  HubRequest Request() const {
    HubRequest request;
    request.model = "them/tiny";
    request.endpoint = hub_.address();
    request.cache = folder_ / "hub";
    return request;
  }
  PulledModel Pull(const HubRequest& request) {
    const auto pulled = PullModel(request, http_);
    EXPECT_TRUE(pulled) << pulled.error().Message();
    return pulled.value_or(PulledModel());
  }
  std::string Refusal(const HubRequest& request) {
    const auto pulled = PullModel(request, http_);
    EXPECT_FALSE(pulled);
    return pulled ? "" : pulled.error().Message();
  }
  // Every file and link below the folder.
  std::vector<std::string> Tree(const std::string& name) const {
    std::vector<std::string> paths;
    if (!fs::exists(folder_ / name)) return paths;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / name)) {
      if (!entry.is_directory()) {
        paths.push_back(fs::relative(entry.path().parent_path(), folder_ / name) /
                        entry.path().filename());
      }
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }

  TemporaryFolder folder_;
  FakeHub hub_{{{"config.json", "{}"},
                {"README.md", "# tiny"},
                {"tokenizer.json", "[]"},
                {"pytorch_model.bin", "PK"},
                {"model.safetensors", "eight eight"}}};
  HttpSettings http_;
};

// The layout is that of huggingface_hub's guide on its cache.
TEST_F(Hub, TheCacheIsThatOfHuggingFace) {
  const PulledModel pulled = Pull(Request());
  const std::string root = folder_ / "hub/models--them--tiny";
  EXPECT_EQ(pulled.folder, root + "/snapshots/" + hub_.commit);
  EXPECT_EQ(pulled.path, pulled.folder);
  EXPECT_THAT(pulled.files, ElementsAre("config.json", "tokenizer.json", "model.safetensors"));
  EXPECT_EQ(pulled.bytes, 2 + 2 + 11);
  EXPECT_EQ(pulled.downloaded, 2 + 2 + 11);
  EXPECT_EQ(ReadText(root + "/refs/main"), hub_.commit);
  EXPECT_EQ(fs::read_symlink(pulled.folder + "/config.json"), "../../blobs/" + GitHashOf("{}"));
  EXPECT_EQ(fs::read_symlink(pulled.folder + "/model.safetensors"),
            "../../blobs/" + Sha256Of("eight eight"));
  EXPECT_EQ(ReadText(pulled.folder + "/model.safetensors"), "eight eight");
  EXPECT_EQ(Tree("hub").size(), 3u + 3 + 1);
}

TEST_F(Hub, WhatIsThereStaysAndAChangeBringsOnlyWhatChanged) {
  const std::string first = Pull(Request()).folder;
  EXPECT_EQ(Pull(Request()).downloaded, 0);
  hub_.commit = std::string(40, '7');
  hub_.files["tokenizer.json"] = "[1]";
  const PulledModel second = Pull(Request());
  EXPECT_EQ(second.downloaded, 3);
  EXPECT_EQ(ReadText(second.folder + "/tokenizer.json"), "[1]");
  EXPECT_EQ(ReadText(first + "/tokenizer.json"), "[]");
  EXPECT_EQ(ReadText(folder_ / "hub/models--them--tiny/refs/main"), hub_.commit);
}

TEST_F(Hub, ADamagedBlobIsFetchedAgain) {
  const PulledModel pulled = Pull(Request());
  WriteText(pulled.folder + "/model.safetensors", "eight EIGHT");
  EXPECT_EQ(Pull(Request()).downloaded, 11);
  EXPECT_EQ(ReadText(pulled.folder + "/model.safetensors"), "eight eight");
}

TEST_F(Hub, RevisionsAreNamedInFull) {
  hub_.revision = "refs%2Fpr%2F1";
  HubRequest request = Request();
  request.revision = "refs/pr/1";
  Pull(request);
  EXPECT_EQ(ReadText(folder_ / "hub/models--them--tiny/refs/refs/pr/1"), hub_.commit);
  request.revision = "main";
  EXPECT_THAT(Refusal(request), HasSubstr("them/tiny, revision main: HTTP 404: no such model or"));
}

TEST_F(Hub, AFolderIsFilledInstead) {
  HubRequest request = Request();
  request.out = folder_ / "mine";
  EXPECT_EQ(Pull(request).path, request.out);
  EXPECT_THAT(Tree("mine"),
              ElementsAre("./config.json", "./model.safetensors", "./tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder_ / "hub"));
  EXPECT_EQ(Pull(request).downloaded, 0);
  // A file that differs is somebody's.
  hub_.files["config.json"] = "{ }";
  EXPECT_THAT(Refusal(request), HasSubstr("mine/config.json: exists already; use --overwrite"));
  EXPECT_EQ(ReadText(folder_ / "mine/config.json"), "{}");
  request.overwrite = true;
  EXPECT_EQ(Pull(request).downloaded, 3);
  // Files of another model are not read with this one.
  hub_.files.erase("tokenizer.json");
  request.overwrite = false;
  EXPECT_THAT(Refusal(request), HasSubstr("mine/tokenizer.json: found a file of another model"));
  request.overwrite = true;
  Pull(request);
  EXPECT_THAT(Tree("mine"), ElementsAre("./config.json", "./model.safetensors"));
}

TEST_F(Hub, ShardsAreThoseOfTheIndex) {
  hub_.files.erase("model.safetensors");
  hub_.files["model.safetensors.index.json"] =
      R"({"weight_map":{"a":"model-00001-of-00002.safetensors",)"
      R"("b":"model-00002-of-00002.safetensors"}})";
  hub_.files["model-00001-of-00002.safetensors"] = "one";
  hub_.files["model-00002-of-00002.safetensors"] = "two!";
  hub_.files["other.safetensors"] = "not of it";
  const PulledModel pulled = Pull(Request());
  EXPECT_THAT(pulled.files,
              ElementsAre("config.json", "tokenizer.json", "model.safetensors.index.json",
                          "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  EXPECT_EQ(ReadText(pulled.folder + "/model-00002-of-00002.safetensors"), "two!");
  hub_.files.erase("model-00002-of-00002.safetensors");
  EXPECT_THAT(Refusal(Request()), HasSubstr("no model-00002-of-00002.safetensors"));
  hub_.files["model.safetensors.index.json"] = R"({"weight_map":{"a":"../../x.safetensors"}})";
  EXPECT_THAT(Refusal(Request()), HasSubstr("../../x.safetensors"));
}

TEST_F(Hub, OneGgufByItsName) {
  hub_.files["q8/tiny.gguf"] = "GGUF";
  HubRequest request = Request();
  request.model = "them/tiny/q8/tiny.gguf";
  const PulledModel pulled = Pull(request);
  EXPECT_THAT(pulled.files, ElementsAre("q8/tiny.gguf"));
  EXPECT_EQ(pulled.path, pulled.folder + "/q8/tiny.gguf");
  EXPECT_EQ(ReadText(pulled.path), "GGUF");
  EXPECT_EQ(fs::read_symlink(pulled.path), "../../../blobs/" + Sha256Of("GGUF"));
  request.out = folder_ / "mine";
  EXPECT_EQ(ReadText(Pull(request).path), "GGUF");
  request.model = "them/tiny/none.gguf";
  request.out = "";
  EXPECT_THAT(Refusal(request), HasSubstr("no none.gguf, expected q8/tiny.gguf"));
  request.out = folder_ / "never";
  EXPECT_THAT(Refusal(request), HasSubstr("no none.gguf"));
  EXPECT_FALSE(fs::exists(request.out));
}

TEST_F(Hub, WithoutSafetensorsTheHintNamesWhatThereIs) {
  hub_.files.erase("model.safetensors");
  EXPECT_THAT(Refusal(Request()), HasSubstr("choose a model that has safetensors"));
  hub_.files["a.gguf"] = "GGUF";
  EXPECT_THAT(Refusal(Request()), HasSubstr("no model.safetensors, expected a model's folder with "
                                            "both; name one of a.gguf behind them/tiny/"));
  EXPECT_THAT(Tree("hub"), IsEmpty());
}

TEST_F(Hub, LongListingsComeInPages) {
  for (int i = 0; i < 7; ++i) hub_.files["a" + std::to_string(i)] = "x";
  hub_.page = 3;
  EXPECT_EQ(Pull(Request()).files.size(), 3u);
  EXPECT_EQ(hub_.Requests("cursor=").size(), 3u);
}

TEST_F(Hub, NamesThatCannotBeAreRefusedWithoutARequest) {
  HubRequest request = Request();
  for (const char* model :
       {"", "tiny", "/tiny", "them/", "../tiny", "them/..", "them/a b", "them/a\nb", "a--b/c",
        "-a/b", "them/tiny/x.bin", "them/tiny/../x.gguf", "them/tiny//x.gguf", "them/tiny/"}) {
    request.model = model;
    EXPECT_THAT(Refusal(request), HasSubstr("OWNER/NAME")) << model;
  }
  request = Request();
  for (const char* revision : {"", "..", "a/../b", "/a", "a\nb"}) {
    request.revision = revision;
    EXPECT_THAT(Refusal(request), HasSubstr("--revision")) << revision;
  }
  request = Request();
  request.endpoint = "ftp://x";
  EXPECT_THAT(Refusal(request), HasSubstr("HF_ENDPOINT"));
  request = Request();
  http_.token = "a\r\nX-Evil: 1";
  EXPECT_THAT(Refusal(request), HasSubstr("HF_TOKEN"));
  EXPECT_THAT(hub_.Requests(""), IsEmpty());
}

TEST_F(Hub, TokensOpenGatedModels) {
  hub_.token = "hf_right";
  EXPECT_THAT(Refusal(Request()), HasSubstr("HTTP 401: no such model, or a gated or private one; "
                                            "see the name, and set HF_TOKEN"));
  http_.token = "hf_wrong";
  EXPECT_THAT(Refusal(Request()), HasSubstr("accept the terms"));
  EXPECT_THAT(Tree("hub"), IsEmpty());
  http_.token = "hf_right";
  Pull(Request());
}

TEST_F(Hub, StatusesAreExplained) {
  hub_.api_status = 403;
  EXPECT_THAT(Refusal(Request()), HasSubstr("HF_TOKEN"));
  hub_.api_status = 429;
  EXPECT_THAT(Refusal(Request()), HasSubstr("too many requests"));
  hub_.api_status = 503;
  EXPECT_THAT(Refusal(Request()), HasSubstr("found HTTP 503"));
  hub_.api_status = 200;
  hub_.file_status = 403;
  EXPECT_THAT(Refusal(Request()), HasSubstr("config.json: HTTP 403"));
  hub_.file_status = 200;
  hub_.commit = "../../x";
  EXPECT_THAT(Refusal(Request()), HasSubstr("X-Repo-Commit"));
  EXPECT_THAT(Tree("hub"), IsEmpty());
}

TEST_F(Hub, AListingThatLeadsElsewhereIsRefused) {
  hub_.listing = R"([{"path":"../config.json","size":1,"oid":")" + kSha1 + "\"}]";
  EXPECT_THAT(Refusal(Request()), HasSubstr("one below the repository's folder"));
  hub_.listing = "it works!";
  EXPECT_THAT(Refusal(Request()), HasSubstr("JSON"));
}

// A file that changed behind the listing never gets its name.
TEST_F(Hub, NothingIsNamedBeforeItIsChecked) {
  hub_.faults = {[](HttpAnswer* a) { a->body[0] ^= 1; }};
  EXPECT_THAT(Refusal(Request()), HasSubstr("thrown away"));
  const std::string snapshot = "hub/models--them--tiny/snapshots/" + hub_.commit;
  EXPECT_THAT(Tree(snapshot), ElementsAre("./config.json", "./tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder_ / "hub/models--them--tiny/refs"));
  Pull(Request());
}

// The name of a partial file is that of huggingface_hub.
TEST_F(Hub, APartialFileIsTakenUp) {
  const std::string blob = folder_ / ("hub/models--them--tiny/blobs/" + Sha256Of("eight eight"));
  fs::create_directories(fs::path(blob).parent_path());
  WriteText(blob + ".incomplete", "eight");
  const PulledModel pulled = Pull(Request());
  EXPECT_EQ(pulled.downloaded, 2 + 2 + 6);
  EXPECT_EQ(hub_.Requests("model.safetensors").back().headers.at("range"), "bytes=5-");
}

TEST_F(Hub, OnePullAtATimeInOneFolder) {
  fs::create_directories(folder_ / "hub/models--them--tiny/blobs");
  const auto lock = FolderLock::Take(folder_ / "hub/models--them--tiny/blobs");
  ASSERT_TRUE(lock);
  EXPECT_THAT(Refusal(Request()), HasSubstr("wait until"));
}

TEST_F(Hub, MoreThanTheDiskHoldsIsRefusedBeforeItComes) {
  hub_.listing = R"([{"path":"config.json","size":2,"oid":")" + GitHashOf("{}") +
                 R"("},{"path":"model.safetensors","lfs":{"size":9000000000000000000,"oid":")" +
                 kSha256 + "\"}}]";
  EXPECT_THAT(Refusal(Request()), HasSubstr("bytes free, expected 9000000000000000000"));
  EXPECT_THAT(hub_.Requests("model.safetensors"), IsEmpty());
}

TEST_F(Hub, ProgressGoesFromWhatIsThereToAll) {
  std::vector<std::pair<int64_t, int64_t>> seen;
  HubEvents events;
  events.on_progress = [&](int64_t done, int64_t total) { seen.emplace_back(done, total); };
  ASSERT_TRUE(PullModel(Request(), http_, events));
  EXPECT_THAT(seen.front(), Pair(4, 15));
  EXPECT_THAT(seen.back(), Pair(15, 15));
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

}  // namespace
}  // namespace heed
