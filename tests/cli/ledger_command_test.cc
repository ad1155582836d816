// `heed ledger`, `heed lesson` and the small example of `heed attention` as scripts meet them.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "support/shell.h"

namespace heed {
namespace {

using nlohmann::json;

json Document(const std::string& line) {
  const TemporaryFolder folder;
  const ShellResult result = Shell(folder.path(), "$heed " + line + " --json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return json::parse(result.out);
}

void ExpectRefused(const std::string& line, const std::string& message) {
  const TemporaryFolder folder;
  const ShellResult result = Shell(folder.path(), "$heed " + line);
  EXPECT_EQ(result.exit_code, 2) << line;
  EXPECT_EQ(result.out, "") << line;
  EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
}

void ExpectLines(const std::string& text, size_t width) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), width) << line;
    EXPECT_FALSE(line.ends_with(' ')) << "'" << line << "'";
  }
}

// 100 columns in a pipe, and what a terminal has.
void ExpectNarrow(const std::string& line,
                  std::initializer_list<unsigned short> widths = {60, 80}) {
  const TemporaryFolder folder;
  const ShellResult result = Shell(folder.path(), "$heed " + line);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  ExpectLines(result.out, 100);
  EXPECT_EQ(OnTerminal(folder.path(), "$heed " + line, 120), result.out) << line;
  for (const unsigned short columns : widths) {
    const std::string narrow = OnTerminal(folder.path(), "$heed " + line, columns);
    ExpectLines(narrow, columns);
    // No word is lost where lines break elsewhere.
    const auto words = [](const std::string& text) {
      std::istringstream in(text);
      return std::multiset<std::string>(std::istream_iterator<std::string>(in), {});
    };
    EXPECT_TRUE(std::ranges::includes(words(narrow), words(result.out))) << line << narrow;
  }
}

TEST(SmallExample, JsonOfTwoTokens) {
  const json got = Document("attention --q '1;2' --k '1;3' --v '10;20'");
  EXPECT_EQ(got["scores"], json::parse("[[1.0, null], [2.0, 6.0]]"));
  EXPECT_EQ(got["pattern"][0], json::parse("[1.0, 0.0]"));
  EXPECT_NEAR(got["pattern"][1][0], 0.017986, 5e-7);
  EXPECT_NEAR(got["output"][1][0], 19.820138, 5e-7);
  EXPECT_EQ(got["shapes"]["scores"], json::parse("[2, 2]"));
  const json open = Document("attention --q '1;2' --k '1;3' --v '10;20' --no-causal");
  EXPECT_NEAR(open["output"][0][0], 18.807971, 5e-7);
  const json column = Document("attention --q '1;2' --k '1;3' --v '10;20' --softmax-axis column");
  EXPECT_NEAR(column["row_sums"][0], 0.268941, 5e-7);
  EXPECT_NEAR(column["row_sums"][1], 1.731059, 5e-7);
}

TEST(SmallExample, WrongMatricesEndInTwoAndOneLine) {
  ExpectRefused("attention --q '1,2;3' --k '1,2' --v 1", "--q: found row 2 of width 1, expected 2");
  ExpectRefused("attention --q x --k 1 --v 1", "\"x\" as number 1 of row 1");
  ExpectRefused("attention --q nan --k 1 --v 1", "expected a finite number");
  ExpectRefused("attention --q 1 --k '1,2' --v 1", "--k: found rows of width 2");
  ExpectRefused("attention --q 1 --k 1 --v '1;2'", "--v: found 2 rows, expected 1");
  ExpectRefused("attention --q '1;2' --k 1 --v 1", "--q: found 2 rows, expected at most 1");
  ExpectRefused("attention --q 1 --v 1", "--k: found nothing");
  ExpectRefused("attention --q '1e200,1' --k '1e200,1' --v 1", "Q K^T: found inf");
  ExpectRefused("attention --q 1 --k '1;1' --v '1e308;1e308' --no-causal --softmax-axis column",
                "A V: found inf");
  ExpectRefused("attention --q 1 --k 1 --v 1 --n-head 2", "--n-head: found given beside");
  ExpectRefused("attention file.npz --q 1 --k 1 --v 1", "beside typed numbers");
}

TEST(LessonProgram, ListsAndWalks) {
  const json list = Document("lesson");
  EXPECT_EQ(list["lessons"].size(), 17u);
  ExpectNarrow("lesson");
  for (const json& lesson : list["lessons"]) {
    ExpectNarrow("lesson " + lesson["name"].get<std::string>());
  }
  EXPECT_EQ(Document("lesson temperature")["steps"][0]["values"], json::parse("[2.0, 1.0, 0.0]"));
  ExpectNarrow("attention --q '1,0.5;2,1' --k '1,0;3,-1' --v '10;20' --softmax-axis column");
  ExpectNarrow("diagnose --explain all");
  ExpectNarrow("diagnose --explain mask_missing");
  ExpectNarrow("--help");
  ExpectRefused("lesson bigrams", "did you mean bigram?");
  ExpectRefused("lesson rope --x 1", "heed lesson three-tokens takes them");
  ExpectRefused("lesson three-tokens --w-q ''", "--w-q: found nothing");
  ExpectRefused("lesson three-tokens --x '1,2;3'", "--x: found row 2 of width 1, expected 2");
  ExpectRefused("lesson three-tokens --x '1;2'", "--w-q: found 3 rows, expected 1");
  ExpectRefused("lesson three-tokens --w-k '1;1;1'", "--w-k: found width 1, expected 2");
  ExpectRefused("lesson three-tokens --w-v 'a,0; 0,3; 1,1'", "\"a\" as number 1 of row 1");
}

TEST(LedgerProgram, JsonHasWhatIsPromised) {
  const TemporaryFolder folder;
  const json got = Document("ledger --n-embd 8 --n-head 4 --n-kv-head 2 --batch-size 2 --seq 3");
  for (const json& tensor : got["tensors"]) {
    for (const char* key : {"name", "axes", "shape", "elements", "bytes", "flops", "copy"}) {
      EXPECT_TRUE(tensor.contains(key)) << tensor << key;
    }
  }
  EXPECT_EQ(got["kv_cache"],
            json::parse(R"({"elements":48,"bytes":192,"elements_mha":96,"measured_bytes":192})"));
  EXPECT_EQ(got["parameters"], 1360);  // by hand: 520 + 24 + 800 + 16
  EXPECT_EQ(got["flops_forward"], 15072);
  EXPECT_EQ(got["fits"], true);
  ExpectNarrow("ledger --n-embd 8 --n-head 4 --n-kv-head 2 --batch-size 2 --seq 3",
               {40, 50, 60, 80});
  ExpectNarrow("ledger --preset gpt2-xl --batch-size 64 --memory 8", {40, 50, 60, 80});
  for (const unsigned short columns : {40, 50, 60, 80}) {
    for (const char* line :
         {"$heed check --preset femto --quiet", "$heed diagnose --explain all"}) {
      ExpectLines(OnTerminal(folder.path(), line, columns), columns);
    }
  }
  ExpectRefused("ledger --preset gpt-nano --seq 2000", "--seq: found 2000, expected 1 to 1024");
  ExpectRefused("ledger --n-embd 10 --n-head 3", "a divisor of n_embd");
  ExpectRefused("ledger --n-embd 6 --n-head 2 --position rope",
                "head_dim: found 3, expected an even");
  ExpectRefused("ledger --n-head 4 --n-kv-head 3", "n_kv_head: found 3 at n_head 4");
  ExpectRefused("ledger --seq -1", "--seq: found -1, expected 1 or more");
  ExpectRefused("ledger none", "none/config.json");
}

TEST(LedgerProgram, FitsIntoTheMemoryThatIsNamed) {
  const std::string line = "ledger --preset gpt2 --batch-size 8 --seq 1024 --memory ";
  EXPECT_EQ(Document(line + "64")["fits"], true);
  const json tight = Document(line + "4");
  EXPECT_EQ(tight["fits"], false);
  EXPECT_EQ(tight["machine_bytes"], int64_t{4} << 30);
  // What is proposed fits.
  const std::string change = tight["change"];
  const std::string batch = change.substr(0, change.find(" --grad-accum"));
  EXPECT_EQ(Document("ledger --preset gpt2 --seq 1024 --memory 4 " + batch)["fits"], true)
      << change;
  // Between what training keeps with activations computed again and without.
  const int64_t again = tight["bytes_training_recompute"], all = tight["bytes_training"];
  EXPECT_LT(again, all);
  const double middle = static_cast<double>(again + all) / 2 / (1 << 30);
  EXPECT_EQ(Document(line + std::to_string(middle))["changes"].back(), "--recompute");
  ExpectRefused(line + "0", "--memory: found 0, expected GiB above 0");
}

TEST(LedgerProgram, ReadsAModelsFolder) {
  const TemporaryFolder folder;
  WriteText(folder / "text.txt", std::string(400, 'a') + "bcd");
  const ShellResult run = Shell(folder.path(),
                                "$heed train text.txt --preset pico --block-size 16 --max-iters 1 "
                                "--quiet --out run && $heed ledger run --json --batch-size 2");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json got = json::parse(run.out.substr(run.out.find('{')));
  EXPECT_EQ(got["seq"], 16);
  EXPECT_EQ(got["config"]["vocab_size"], 4);
  EXPECT_EQ(got["kv_cache"]["elements"], 2 * 3 * 2 * 6 * 16);
}

// Peak resident bytes of one run of the program.
int64_t PeakBytes(const std::string& folder, const std::string& arguments) {
  const std::string line =
      "rm -rf run && exec $heed train text.txt --out run --quiet --max-iters "
      "1 --eval-iters 1 " +
      arguments + " >/dev/null";
  setenv("heed", HEED_PROGRAM, 1);
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(folder.c_str()) == 0) execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    _exit(127);
  }
  int status = -1;
  rusage usage = {};
  EXPECT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << arguments;
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST(LedgerProgram, TrainingMemoryIsPredictedWithinFivePercent) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep memory of their own";
#endif
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += "the quick brown fox jumps over the lazy dog, 0123456789;\n";
  const std::set<char> letters(text.begin(), text.end());
  WriteText(folder / "text.txt", text);
  const int64_t base = PeakBytes(folder.path(), "--preset femto --block-size 8 --batch-size 1");
  const std::pair<const char*, const char*> settings[] = {
      {"--n-layer 6 --n-head 6 --n-embd 192 --batch-size 32", "128"},
      {"--n-layer 4 --n-head 8 --n-kv-head 2 --n-embd 256 --position rope --norm rmsnorm --mlp "
       "swiglu --no-bias --batch-size 24",
       "128"},
      {"--n-layer 8 --n-head 8 --n-embd 512 --batch-size 4", "64"},
      {"--n-layer 2 --n-head 4 --n-embd 128 --dropout 0.1 --batch-size 32", "512"},
      {"--n-layer 12 --n-head 4 --n-embd 64 --no-tied --batch-size 24", "256"}};
  const auto expect_near = [&](const char* bytes, const std::string& model,
                               const std::string& length, const std::string& more) {
    const json ledger = Document("ledger " + model + " --seq " + length + " --vocab-size " +
                                 std::to_string(letters.size()));
    const auto grown = static_cast<double>(
        PeakBytes(folder.path(), model + " --block-size " + length + more) - base);
    EXPECT_NEAR(ledger[bytes].get<double>() / grown, 1, 0.05) << model << more;
  };
  for (const auto& [model, length] : settings) expect_near("bytes_training", model, length, "");
  expect_near("bytes_training_recompute", settings[0].first, "128", " --recompute");
}

}  // namespace
}  // namespace heed
