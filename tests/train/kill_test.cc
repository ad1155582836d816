// The program itself, killed at any moment: its folder holds a whole model or none, and the run
// that goes on ends in the bytes of the one that was never killed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "support/tiny_run.h"

namespace heed {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments) {
    std::vector<char*> argv = {const_cast<char*>(HEED_PROGRAM)};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    const int nowhere = open("/dev/null", O_RDWR);
    for (const int fd : {0, 1, 2}) dup2(nowhere, fd);
    execv(HEED_PROGRAM, argv.data());
    _exit(127);
  }
  // The exit code, or -1 when a signal ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int KillAfter(milliseconds wait) {
    std::this_thread::sleep_for(wait);
    kill(pid_, SIGKILL);
    return Wait();
  }

 private:
  pid_t pid_ = 0;
};

TEST(Killed, TheRunThatGoesOnIsTheStraightRun) {
  const TemporaryFolder folder;
  const std::string text = folder / "text.txt";
  WriteText(text, TinyText());
  const auto start = [&](const std::string& out) -> std::vector<std::string> {
    return {"train",
            text,
            "--out",
            out,
            "--n-layer",
            "2",
            "--n-head",
            "2",
            "--n-embd",
            "12",
            "--dropout",
            "0.1",
            "--block-size",
            "8",
            "--batch-size",
            "3",
            "--seed",
            "5",
            "--threads",
            "1",
            "--max-iters",
            "60",
            "--eval-iters",
            "2",
            "--eval-interval",
            "20",
            "--checkpoint-interval",
            "1",
            "--overwrite"};
  };
  const std::string straight = folder / "straight", killed = folder / "killed";
  const auto before = steady_clock::now();
  ASSERT_EQ(Program(start(straight)).Wait(), 0);
  const auto whole = std::chrono::duration_cast<milliseconds>(steady_clock::now() - before).count();
  const std::string want = ReadText(straight + "/model.safetensors");
  ASSERT_FALSE(want.empty());

  // A run that has no checkpoint yet is started again.
  const auto begun = [&] {
    return std::filesystem::exists(killed + "/checkpoint/state.safetensors");
  };
  const auto arguments = [&] {
    return begun() ? std::vector<std::string>{"train", "--resume", killed, "--threads", "1"}
                   : start(killed);
  };
  int kills = 0, after_a_model = 0;
  for (uint64_t i = 0; i < 12; ++i) {
    const auto wait = static_cast<int64_t>(RandomBelow({whole * 7919ull, 0, 0}, i, whole / 5 + 2));
    const int code = Program(arguments()).KillAfter(milliseconds(wait));
    ASSERT_TRUE(code == -1 || code == 0) << "refused to go on after kill " << kills;
    kills += code == -1;
    if (!std::filesystem::exists(killed + "/model.safetensors")) continue;
    ++after_a_model;
    const auto loaded = LoadModel(killed, SimdKernels());
    ASSERT_TRUE(loaded) << loaded.error().Message();
    ASSERT_TRUE(loaded->tokenizer);
    const auto rows = ReadMetrics(killed + "/metrics.jsonl");
    ASSERT_TRUE(rows) << rows.error().Message();
  }
  EXPECT_GE(kills, 5);
  EXPECT_GE(after_a_model, 1);
  ASSERT_EQ(Program(arguments()).Wait(), 0);
  EXPECT_TRUE(ReadText(killed + "/model.safetensors") == want);
  const auto rows = *ReadMetrics(killed + "/metrics.jsonl");
  const auto straight_rows = *ReadMetrics(straight + "/metrics.jsonl");
  ASSERT_EQ(rows.size(), straight_rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].iter, straight_rows[i].iter);
    EXPECT_EQ(rows[i].train_loss, straight_rows[i].train_loss) << rows[i].iter;
    EXPECT_EQ(rows[i].val_loss, straight_rows[i].val_loss) << rows[i].iter;
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(killed)) {
    EXPECT_FALSE(entry.path().string().ends_with(".heed-tmp")) << entry.path();
  }
}

}  // namespace
}  // namespace heed
