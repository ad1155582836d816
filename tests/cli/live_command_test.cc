// heed diagnose --run, with programs in sh, C++ and Python.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/doc_commands.h"
#include "support/shell.h"

namespace heed {
namespace {

using testing::Each;
using testing::HasSubstr;

class LiveProgramTest : public testing::Test {
 protected:
  ShellResult Run(const std::string& command, const std::string& options = "") {
    WriteText(folder_ / "program", command);
    return Shell(folder_.path(), "$heed diagnose --quiet --run \"sh ./program\" " + options);
  }

  // A Python that has numpy, or torch; "" when there is none.
  static std::string Python(const std::string& module) {
    const TemporaryFolder anywhere;
    for (const std::string python : {"python3", "/usr/bin/python3"}) {
      if (Shell(anywhere.path(), python + " -c 'import " + module + "'").exit_code == 0) {
        return python;
      }
    }
    return "";
  }

  const TemporaryFolder folder_;
};

TEST_F(LiveProgramTest, FailuresBeforeMathematicsAreNamed) {
  WriteText(folder_ / "y_alone.py", "");
  const std::pair<const char*, const char*> cases[] = {
      {"nowhere_to_be_found", "not_found"},
      {"echo \"ModuleNotFoundError: No module named 'einops'\" >&2; exit 1",
       "import_error in mode eval: ModuleNotFoundError: No module named 'einops'"},
      {"echo \"FileNotFoundError: [Errno 2] No such file or directory: 'w.pt'\" >&2; exit 1",
       "missing_file"},
      {"cat no_such_file", "missing_file"},
      {"echo NotImplementedError >&2; exit 1", "not_implemented"},
      {"echo \"RuntimeError: mat1 and mat2 shapes cannot be multiplied (18x24 and 8x8)\" >&2; "
       "exit 1",
       "shape_error"},
      {"echo \"KeyError: 'wq'\" >&2; exit 1", "exception in mode eval: KeyError: 'wq'"},
      {"exit 5", "exit code 5 and nothing on stderr"},
      {"kill -SEGV $$", "crash in mode eval: signal 11"},
      {"sleep 30", "time_out"},
      {"true", "no_output"},
      {"echo nonsense >\"$2\"", "bad_output"},
      {"cp \"$1\" \"$2\"", "wrong_output"}};
  for (const auto& [command, words] : cases) {
    const ShellResult result = Run(command, "--timeout 2");
    EXPECT_EQ(result.exit_code, 2) << command;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(LiveProgramTest, ATimeOutEndsWhatWasStarted) {
  EXPECT_EQ(Run("sleep 77 & echo $! >child; sleep 77", "--timeout 1").exit_code, 2);
  const std::string child = ReadText(folder_ / "child");
  ASSERT_FALSE(child.empty());
  const std::string state =
      "grep -q '^State:.[^Z]' /proc/" + child.substr(0, child.size() - 1) + "/status 2>/dev/null";
  EXPECT_NE(Shell(folder_.path(), state).exit_code, 0);
}

TEST_F(LiveProgramTest, RequestsAreRead) {
  const std::pair<const char*, const char*> cases[] = {
      {"--timeout 0", "--timeout"},
      {"--n-head 4 --n-kv-head 3", "--n-kv-head"},
      {"--dropout 1", "--dropout"},
      {"--window 0", "window"},
      {"--head-dim 5 --position rope", "--head-dim"},
      {"--kind sampler", "--kind"},
      {"layer.safetensors", "--run alone"}};
  for (const auto& [options, words] : cases) {
    const ShellResult result = Run("true", options);
    EXPECT_EQ(result.exit_code, 2) << options;
    EXPECT_THAT(result.err, HasSubstr(words));
  }
}

// ------------------------------------------------------------------ a program in C++

nlohmann::json Parse(const ShellResult& result) {
  EXPECT_TRUE(nlohmann::json::accept(result.out)) << result.err;
  return nlohmann::json::parse(result.out, nullptr, false);
}

std::vector<std::string> Verdicts(const nlohmann::json& json) {
  std::vector<std::string> verdicts;
  for (const auto& check : json["checks"]) verdicts.push_back(check["verdict"]);
  return verdicts;
}

const char kExample[] = HEED_EXAMPLE_ATTENTION " \"$@\"";

TEST_F(LiveProgramTest, ARightProgramPassesEveryCheck) {
  for (const char* options :
       {"--json", "--n-kv-head 2 --position rope --json", "--n-head 5 --n-embd 40 --json",
        "--n-head 4 --n-kv-head 2 --head-dim 6 --n-embd 20 --position rope --bias --json"}) {
    const ShellResult result = Run(kExample, options);
    EXPECT_EQ(result.exit_code, 0) << options << result.err;
    const nlohmann::json json = Parse(result);
    EXPECT_EQ(json["verdict"], "correct");
    EXPECT_THAT(Verdicts(json), Each(testing::AnyOf("ok", "skipped")));
    EXPECT_TRUE(json["failing_input"].is_null());
  }
}

TEST_F(LiveProgramTest, AFaultIsNamedConfirmedAndShortened) {
  // The program pairs halves and knows one theta.
  const std::pair<const char*, const char*> cases[] = {
      {"--position rope --rope-pairing interleaved", "rope_pairing"},
      {"--position rope --rope-pairing half --rope-theta 777", "rope_theta"}};
  for (const auto& [options, fault] : cases) {
    const ShellResult result = Run(kExample, std::string(options) + " --json");
    EXPECT_EQ(result.exit_code, 1) << result.err;
    const nlohmann::json json = Parse(result);
    EXPECT_EQ(json["verdict"], "fault");
    EXPECT_EQ(json["explanations"][0]["faults"], nlohmann::json({fault}));
    // Position 0 is not rotated.
    EXPECT_EQ(json["failing_input"]["batch_size"], 1);
    EXPECT_EQ(json["failing_input"]["positions"], 2);
  }
}

TEST_F(LiveProgramTest, TextFitsTheTerminal) {
  const ShellResult result = Run(kExample, "--position rope --rope-pairing interleaved");
  EXPECT_TRUE(result.out.starts_with("fault: rope_pairing\n")) << result.out;
  // Of a right program more is asked; what is not stands in one place.
  const std::string right = Run(kExample).out;
  EXPECT_THAT(right, HasSubstr("\nskipped  "));
  EXPECT_EQ(right.find("\nskipped  "), right.rfind("\nskipped  "));
  std::istringstream lines(result.out.substr(0, result.out.find("import numpy")));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

// ------------------------------------------------------------------ Python

TEST_F(LiveProgramTest, TheFailingInputIsTheSameInNumpy) {
  const std::string python = Python("numpy");
  if (python.empty()) GTEST_SKIP() << "no Python with numpy";
  const nlohmann::json json =
      Parse(Run(kExample, "--position rope --rope-pairing interleaved --bias --json"));
  // The lines with the right formula in place of the user's module, for one head's rotation.
  std::string code = json["failing_input"]["code"];
  const size_t line = code.find("y = ...");
  ASSERT_NE(line, std::string::npos);
  code.replace(line, code.find('\n', line) - line,
               "def heads(w, b):\n"
               "    return (x @ w.T + b).reshape(x.shape[0], x.shape[1], 3, 8)\n"
               "def turn(h):\n"
               "    a = np.arange(x.shape[1])[:, None, None] * 1e4 ** (-np.arange(0, 8, 2) / 8)\n"
               "    z = (h[..., 0::2] + 1j * h[..., 1::2]) * np.exp(1j * a)\n"
               "    return np.stack([z.real, z.imag], -1).reshape(h.shape)\n"
               "q, k, v = turn(heads(w_q, b_q)), turn(heads(w_k, b_k)), heads(w_v, b_v)\n"
               "s = np.einsum('bihd,bjhd->bhij', q, k) / 8 ** .5\n"
               "e = np.exp(s) * np.tri(x.shape[1])\n"
               "z = np.einsum('bhij,bjhd->bihd', e / e.sum(-1, keepdims=True), v)\n"
               "y = z.reshape(x.shape) @ w_o.T + b_o\n");
  WriteText(folder_ / "test.py", code);
  const ShellResult right = Shell(folder_.path(), python + " test.py");
  EXPECT_EQ(right.exit_code, 0) << right.err;
  WriteText(folder_ / "test.py", code.replace(code.find("1j * a"), 6, "-1j * a"));
  EXPECT_EQ(Shell(folder_.path(), python + " test.py").exit_code, 1);
}

TEST_F(LiveProgramTest, DocumentedCommandsRun) {
  const std::string python = Python("torch");
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const std::string build = folder_ / "build", bin = folder_ / "bin";
  std::filesystem::create_directory(build);
  std::filesystem::create_directory(bin);
  std::filesystem::create_symlink(HEED_PROGRAM, build + "/heed");
  std::filesystem::create_symlink(HEED_SOURCE_DIR "/examples", folder_ / "examples");
  WriteText(folder_ / "my_attention.py",
            "import sys\nsys.path.insert(0, 'examples/diagnose')\n" +
                ReadText(HEED_SOURCE_DIR "/examples/diagnose/numpy_attention.py"));
  WriteText(bin + "/python3", "#!/bin/sh\nexec " +
                                  std::string(python[0] == '/' ? "" : "/usr/bin/env ") + python +
                                  " \"$@\"\n");
  std::filesystem::permissions(bin + "/python3", std::filesystem::perms::owner_all);
  const std::vector<std::string> commands = DocCommands("docs/diagnose-live.md");
  EXPECT_EQ(commands.size(), 3u);
  for (const std::string& command : commands) {
    const std::string path = python[0] == '/' ? "PATH=./bin:$PATH " : "";
    const ShellResult result = Shell(folder_.path(), path + command);
    EXPECT_EQ(result.exit_code, 0) << command << "\n" << result.out << result.err;
  }
}

struct Learner {
  const char* module;
  const char* options;
  const char* fault;  // "none": right
};

// Dropout that is missing has no failing input. One program is asked again by the same layer, the
// other keeps its layer from question to question.
TEST_F(LiveProgramTest, DropoutThatAnEvaluationEndsIsNotUnused) {
  const std::string python = Python("torch");
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  for (const char* module : {"per_head_loops", "one_layer"}) {
    for (const char* fault : {"none", "dropout_unused", "dropout_off_for_good"}) {
      const nlohmann::json json =
          Parse(Run("exec " + python + " " HEED_SOURCE_DIR "/tests/learners/" + module +
                        ".py --fault " + fault + " \"$@\"",
                    "--json"));
      const bool right = fault == std::string("none");
      EXPECT_EQ(json["verdict"], right ? "correct" : "fault") << module << json;
      const auto faults = right ? nlohmann::json::array() : nlohmann::json({fault});
      EXPECT_EQ(json["explanations"][0]["faults"], faults) << module << json;
    }
  }
}

class Learners : public LiveProgramTest, public testing::WithParamInterface<Learner> {};

TEST_P(Learners, AreJudgedByTheirAnswers) {
  const std::string python = Python("torch");
  if (python.empty()) GTEST_SKIP() << "no Python with torch";
  const auto& [module, options, fault] = GetParam();
  const ShellResult result = Run("exec " + python + " " HEED_SOURCE_DIR "/tests/learners/" +
                                     module + ".py --fault " + fault + " \"$@\"",
                                 std::string(options) + " --json");
  const nlohmann::json json = Parse(result);
  if (fault == std::string("none")) {
    EXPECT_EQ(json["verdict"], "correct") << result.out;
    EXPECT_EQ(result.exit_code, 0);
    return;
  }
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(json["verdict"], "fault") << result.out;
  EXPECT_EQ(json["explanations"][0]["faults"], nlohmann::json({fault})) << result.out;
  EXPECT_TRUE(json["failing_input"].is_object()) << result.out;
}

constexpr const char* kGrouped = "--n-kv-head 2";
constexpr const char* kFused = "--qkv-layout blocks --bias";
constexpr const char* kHalf = "--position rope --rope-pairing half";
constexpr const char* kSixHeads = "--n-head 6 --position none";
constexpr const char* kLayerNorms = "--qk-norm before_rope --qk-layernorm true";
constexpr const char* kComplex = "--n-kv-head 2 --position rope --rope-pairing interleaved";
INSTANTIATE_TEST_SUITE_P(Modules, Learners,
                         testing::Values(Learner{"per_head_loops", "", "none"},
                                         Learner{"per_head_loops", "", "mask_01_added"},
                                         Learner{"per_head_loops", "", "dropout_live_in_eval"},
                                         Learner{"per_head_loops", "", "mask_dropped_on_a_path"},
                                         Learner{"fused_qkv", kFused, "none"},
                                         Learner{"fused_qkv", kFused, "heads_merged_untransposed"},
                                         Learner{"einsum_gqa", kGrouped, "none"},
                                         Learner{"einsum_gqa", kGrouped, "gqa_tiled"},
                                         Learner{"cached_rope", kHalf, "none"},
                                         Learner{"cached_rope", kHalf, "position_restart"},
                                         Learner{"cached_rope", kHalf, "rope_table_cache_key"},
                                         Learner{"in_context", "", "none"},
                                         Learner{"in_context", "--alibi true", "none"},
                                         Learner{"in_context", "--qk-norm before_rope", "none"},
                                         Learner{"in_context", "", "padding_not_masked"},
                                         Learner{"in_context", "", "mask_fold_order"},
                                         Learner{"in_context", "", "fully_masked_row_nan"},
                                         Learner{"in_context", kSixHeads, "alibi_missing"},
                                         Learner{"in_context", kSixHeads, "alibi_non_power_of_two"},
                                         Learner{"in_context", kSixHeads, "alibi_slope_exponent"},
                                         Learner{"in_context", "--alibi true", "alibi_sign"},
                                         Learner{"in_context", "", "qk_norm_missing"},
                                         Learner{"in_context", "", "qk_norm_gain_missing"},
                                         Learner{"in_context", kLayerNorms, "qk_norm_kind"},
                                         Learner{"complex_rope", kComplex, "none"},
                                         Learner{"complex_rope", kComplex, "rope_sign"}),
                         [](const auto& each) {
                           return std::string(each.param.module) + "_" + each.param.fault + "_" +
                                  std::to_string(each.index);
                         });

}  // namespace
}  // namespace heed
