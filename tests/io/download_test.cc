// One file from a server of the test's own that misbehaves.
#include "io/download.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>

#include "support/fake_hub.h"
#include "support/shell.h"

namespace heed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Download : public testing::Test {
 protected:
  Download() {
    setenv("no_proxy", "127.0.0.1", 1);
    settings_.tries = 3;
    settings_.first_wait_s = 0.01;
    settings_.stall_seconds = 1;
  }

  std::string Address() const { return hub_.address() + "/them/tiny/resolve/main/w.safetensors"; }
  FileToFetch File() const {
    return {Address(),     static_cast<int64_t>(kText.size()), Sha256Of(kText),
            folder_ / "w", folder_ / "w.incomplete",           false};
  }
  Result<HttpReply> Fetch() {
    counts_.clear();
    return HttpClient(settings_).Fetch(File(), [&](int64_t there) { counts_.push_back(there); });
  }
  // The line of an error; no file may have its final name then.
  std::string Refusal() {
    const Result<HttpReply> reply = Fetch();
    EXPECT_FALSE(reply);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "w"));
    return reply ? "" : reply.error().Message();
  }
  void ExpectWhole(const Result<HttpReply>& reply) {
    ASSERT_TRUE(reply) << reply.error().Message();
    EXPECT_EQ(reply->status, 200);
    EXPECT_TRUE(ReadText(folder_ / "w") == kText);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "w.incomplete"));
  }
  std::vector<std::string> Ranges() const {
    std::vector<std::string> ranges;
    for (const HttpRequest& request : hub_.Requests("w.safetensors")) {
      const auto range = request.headers.find("range");
      ranges.push_back(range == request.headers.end() ? "" : range->second);
    }
    return ranges;
  }

  static std::string Text() {
    std::string text;
    while (text.size() < 100000) text += std::to_string(text.size()) + ' ';
    return text;
  }
  const std::string kText = Text();
  TemporaryFolder folder_;
  FakeHub hub_{{{"w.safetensors", kText}}};
  HttpSettings settings_;
  std::vector<int64_t> counts_;
};

TEST_F(Download, ComesWhole) {
  const auto reply = Fetch();
  ExpectWhole(reply);
  EXPECT_EQ(reply->received, static_cast<int64_t>(kText.size()));
  EXPECT_EQ(counts_.back(), static_cast<int64_t>(kText.size()));
  EXPECT_TRUE(std::is_sorted(counts_.begin(), counts_.end()));
  EXPECT_EQ(reply->headers.at("x-repo-commit"), hub_.commit);
}

TEST_F(Download, ACutConnectionIsTakenUpWhereItWasCut) {
  hub_.faults = {[](HttpAnswer* a) { a->cut_after = 30000; },
                 [](HttpAnswer* a) { a->cut_after = 20000; }};
  const auto reply = Fetch();
  ExpectWhole(reply);
  EXPECT_THAT(Ranges(), ElementsAre("", "bytes=30000-", "bytes=50000-"));
  EXPECT_EQ(reply->received, static_cast<int64_t>(kText.size()));
}

// Each new byte gives the server all its tries again; without one they end.
TEST_F(Download, AnotherRunGoesOn) {
  const auto cut = [](HttpAnswer* a) { a->cut_after = 0; };
  hub_.faults = {[](HttpAnswer* a) { a->cut_after = 30000; }, cut, cut, cut, cut, cut};
  EXPECT_THAT(Refusal(), HasSubstr("the connection was cut"));
  EXPECT_THAT(Refusal(), HasSubstr("run the same command again: it goes on from there"));
  EXPECT_TRUE(ReadText(folder_ / "w.incomplete") == kText.substr(0, 30000));
  hub_.faults.clear();
  const auto reply = Fetch();
  ExpectWhole(reply);
  EXPECT_EQ(Ranges().back(), "bytes=30000-");
  EXPECT_EQ(reply->received, static_cast<int64_t>(kText.size()) - 30000);
}

TEST_F(Download, AWholePartialFileNeedsNoServer) {
  WriteText(folder_ / "w.incomplete", kText);
  ExpectWhole(Fetch());
  EXPECT_THAT(Ranges(), IsEmpty());
}

TEST_F(Download, AServerWithoutRangesBeginsAgain) {
  hub_.ranges = false;
  WriteText(folder_ / "w.incomplete", kText.substr(0, 1000));
  ExpectWhole(Fetch());
  EXPECT_THAT(Ranges(), ElementsAre("bytes=1000-"));
}

TEST_F(Download, APartialFileThatIsTooLongIsBegunAgain) {
  WriteText(folder_ / "w.incomplete", kText + "more");
  ExpectWhole(Fetch());
}

TEST_F(Download, AServerThatIsStillIsLeft) {
  const auto hang = [](HttpAnswer* a) { a->hang_after = 0; };
  settings_.tries = 2;
  hub_.faults = {hang, hang};
  EXPECT_THAT(Refusal(), HasSubstr("no byte for 1 s"));
  hub_.faults = {hang};
  ExpectWhole(Fetch());
}

TEST_F(Download, AnotherSizeIsRefused) {
  hub_.files["w.safetensors"] = kText.substr(1);
  EXPECT_THAT(Refusal(), HasSubstr("found " + std::to_string(kText.size() - 1) +
                                   " bytes, expected " + std::to_string(kText.size())));
  hub_.files["w.safetensors"] = kText + "more";
  WriteText(folder_ / "w.incomplete", kText.substr(0, 1000));
  EXPECT_THAT(Refusal(), HasSubstr("found " + std::to_string(kText.size() + 4) + " bytes"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "w.incomplete"));
  // Nothing of a promised body, and a body that is said to be empty.
  hub_.files["w.safetensors"] = "";
  EXPECT_THAT(Refusal(), HasSubstr("found 0 bytes"));
}

TEST_F(Download, WrongBytesAreThrownAway) {
  hub_.files["w.safetensors"][50000] ^= 1;
  EXPECT_THAT(Refusal(), HasSubstr("checksum " + Sha256Of(hub_.files["w.safetensors"]) +
                                   ", expected " + Sha256Of(kText)));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "w.incomplete"));
  // A good end does not mend a bad beginning.
  hub_.files["w.safetensors"] = kText;
  WriteText(folder_ / "w.incomplete", std::string(1000, 'x'));
  EXPECT_THAT(Refusal(), HasSubstr("thrown away: run again"));
  ExpectWhole(Fetch());
}

TEST_F(Download, BytesOfAnotherPlaceAreRefused) {
  WriteText(folder_ / "w.incomplete", kText.substr(0, 1000));
  for (const char* range : {"bytes 999-99/100", "bytes 1001-2/x", "nothing", "bytes -5/7", ""}) {
    WriteText(folder_ / "w.incomplete", kText.substr(0, 1000));
    hub_.faults = {[&](HttpAnswer* a) { a->headers["Content-Range"] = range; }};
    EXPECT_THAT(Refusal(), HasSubstr("bytes of another place")) << range;
  }
}

TEST_F(Download, APassingFaultOfTheServerPasses) {
  hub_.failures = 2;
  ExpectWhole(Fetch());
  std::filesystem::remove(folder_ / "w");
  hub_.failures = 3;
  const auto reply = Fetch();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 500);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "w.incomplete"));
}

// A token for one port is no business of another one's.
TEST_F(Download, TheTokenStaysWithItsHost) {
  FakeHub other({{"w.safetensors", kText}});
  hub_.redirect = other.address() + "/them/tiny/resolve/main/";
  hub_.token = settings_.token = "hf_secret";
  ExpectWhole(Fetch());
  ASSERT_EQ(hub_.Requests("").size(), 1u);
  EXPECT_EQ(hub_.Requests("")[0].headers.at("authorization"), "Bearer hf_secret");
  ASSERT_EQ(other.Requests("").size(), 1u);
  EXPECT_EQ(other.Requests("")[0].headers.count("authorization"), 0u);
}

TEST_F(Download, ARedirectInACircleEnds) {
  hub_.redirect = hub_.address() + "/them/tiny/resolve/main/";
  EXPECT_THAT(Refusal(), HasSubstr("more than 10 redirects"));
  EXPECT_EQ(hub_.Requests("").size(), 11u);
}

TEST_F(Download, ARedirectToAFileIsRefused) {
  hub_.redirect = "file:///etc/";
  EXPECT_THAT(Refusal(), HasSubstr("no address to be fetched"));
}

TEST_F(Download, NobodyThere) {
  FileToFetch file = File();
  {
    const FakeHub gone({});
    file.url = gone.address() + "/x";
  }
  const auto nobody = HttpClient(settings_).Fetch(file, [](int64_t) {});
  ASSERT_FALSE(nobody);
  EXPECT_THAT(nobody.error().Message(), HasSubstr("is there a network"));
  file.url = "http://no-such-host.invalid/x";
  const auto unknown = HttpClient(settings_).Fetch(file, [](int64_t) {});
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().Message(), HasSubstr("no-such-host.invalid"));
}

TEST_F(Download, IsStoppedAndGoesOnLater) {
  hub_.faults = {[](HttpAnswer* a) { a->hang_after = 500; }};
  bool stop = false;
  settings_.stall_seconds = 30;
  settings_.should_stop = [&] { return stop; };
  const auto stopped = HttpClient(settings_).Fetch(File(), [&](int64_t) { stop = true; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().kind, ErrorKind::kInterrupted);
  EXPECT_TRUE(ReadText(folder_ / "w.incomplete") == kText.substr(0, 500));
  stop = false;
  ExpectWhole(Fetch());
}

TEST_F(Download, AFullDiskIsNamedAndWhatCameStays) {
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {10000, old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Result<HttpReply> reply = Fetch();
  setrlimit(RLIMIT_FSIZE, &old_limit);
  signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().Message(), HasSubstr("cannot be written"));
  EXPECT_EQ(hub_.Requests("").size(), 1u);
  EXPECT_TRUE(ReadText(folder_ / "w.incomplete") == kText.substr(0, 10000));
  ExpectWhole(Fetch());
}

TEST_F(Download, AnExistingFileIsRefusedBeforeAnythingIsAsked) {
  WriteText(folder_ / "w", "mine");
  const auto reply = Fetch();
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().Message(), HasSubstr("--overwrite"));
  EXPECT_THAT(Ranges(), IsEmpty());
}

}  // namespace
}  // namespace heed
