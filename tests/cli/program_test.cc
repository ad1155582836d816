// The program as scripts meet it: exit codes, one line for an error, streams that go away.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/shell.h"

namespace heed {
namespace {

class Program : public testing::Test {
 protected:
  Program() {
    std::filesystem::create_directory(folder_ / "run");
    std::string text;
    for (int i = 0; i <= 100; ++i) {
      const double loss = 4 - 0.02 * i;
      text += "{\"iter\":" + std::to_string(i) + ",\"tokens\":" + std::to_string(i * 768) +
              ",\"train_loss\":" + std::to_string(loss) + "}\n";
    }
    WriteText(folder_ / "run/metrics.jsonl", text);
  }

  ShellResult Run(const std::string& line) { return Shell(folder_.path(), line); }
  void ExpectRefused(const std::string& line, const std::string& message) {
    const ShellResult result = Run(line);
    EXPECT_EQ(result.exit_code, 2) << line;
    EXPECT_EQ(result.out, "") << line;
    EXPECT_EQ(result.err, "heed: " + message + "\n") << line;
  }

  TemporaryFolder folder_;
};

TEST_F(Program, HelpAndVersionAreAnswers) {
  for (const char* line : {"$heed", "$heed --help", "$heed -h"}) {
    const ShellResult result = Run(line);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    EXPECT_NE(result.out.find("\n  plot  "), std::string::npos);
  }
  EXPECT_EQ(Run("$heed --version").out, "heed " HEED_VERSION "\n");
  const ShellResult help = Run("$heed plot --help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("Example:\n  heed plot "), std::string::npos);
  EXPECT_NE(help.out.find("--metric loss|perplexity"), std::string::npos);
}

// A help page's lines on a terminal of so many columns.
std::vector<std::string> HelpOn(const std::string& folder, const std::string& command,
                                unsigned short columns) {
  std::istringstream text(OnTerminal(folder, "$heed " + command + " --help", columns));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// Only one word in quotes may be wider, for a line cannot be broken inside.
TEST_F(Program, HelpFitsNarrowTerminals) {
  for (const unsigned short columns : {40, 50}) {
    for (const char* command : {"train", "check", "diagnose", "attention", "tokenize", "pull"}) {
      const std::vector<std::string> lines = HelpOn(folder_.path(), command, columns);
      EXPECT_GT(lines.size(), 20u);
      for (const std::string& line : lines) {
        EXPECT_TRUE(line.size() <= columns || line.starts_with("    \"")) << line;
      }
    }
  }
}

// Broken lines are joined again by the shell.
TEST_F(Program, ANarrowExampleIsTheSameCommand) {
  const auto examples = [&](unsigned short columns) {
    std::string script;
    bool inside = false;
    for (const std::string& line : HelpOn(folder_.path(), "check", columns)) {
      if (inside && line.empty()) break;
      if (inside) script += line + "\n";
      inside = inside || line == "Example:";
    }
    return Run("heed() { printf '<%s>' \"$@\"; }\n" + script).out;
  };
  EXPECT_EQ(examples(40), examples(100));
  EXPECT_NE(examples(40).find("<--plant><mask_shifted_by_one>"), std::string::npos);
}

TEST_F(Program, ThePlotsExampleRunsAgain) {
  Run("mkdir runs && cp -r run runs/demo");
  for (int i = 0; i < 2; ++i) {
    const ShellResult result =
        Run("eval \"$($heed plot --help | grep -A 1 '^Example' | sed -n 's/^  heed /$heed /p')\"");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.err.find("wrote runs/demo/loss.svg"), std::string::npos) << result.err;
  }
}

TEST_F(Program, EveryCommandExplainsItself) {
  std::istringstream list(Run("$heed --help").out);
  std::string line;
  while (std::getline(list, line) && line != "Commands:") {
  }
  int commands = 0;
  for (; std::getline(list, line) && !line.empty(); ++commands) {
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    const ShellResult help = Run("$heed " + name + " --help");
    EXPECT_EQ(help.exit_code, 0) << name;
    EXPECT_EQ(help.err, "") << name;
    EXPECT_TRUE(help.out.starts_with("heed " + name + ": ")) << name;
    EXPECT_NE(help.out.find("Example:\n  heed " + name), std::string::npos) << name;
    EXPECT_NE(help.out.find("--json "), std::string::npos) << name;
    std::istringstream lines(help.out);
    for (std::string row; std::getline(lines, row);) EXPECT_LE(row.size(), 100) << row;
    EXPECT_EQ(Run("$heed " + name + " --jsno").exit_code, 2) << name;
  }
  EXPECT_GE(commands, 1);
}

TEST_F(Program, RequestsThatAreWrongEndInTwoAndOneLine) {
  ExpectRefused("$heed plto",
                "plto: found unknown command, expected a command; did you mean heed "
                "plot?");
  ExpectRefused("$heed plot run --metrc loss",
                "--metrc: found unknown option, expected a known option; did you mean --metric?");
  ExpectRefused("$heed plot run --threads 0", "--threads: found 0, expected 1 to 1024");
  ExpectRefused("$heed plot run --threads 1025", "--threads: found 1025, expected 1 to 1024");
  ExpectRefused("$heed plot run --seed -1", "--seed: found -1, expected 0 or more");
  ExpectRefused("$heed plot run --floor nan", "--floor: found 'nan', expected a finite number");
  ExpectRefused("$heed plot",
                "heed plot: found no run, expected the folder of one; for example "
                "heed plot runs/demo");
  ExpectRefused("$heed plot nowhere", "nowhere: no such file; check the path");
  ExpectRefused("$heed plot run --out a.gif",
                "--out: found a.gif, expected a name that ends in .svg or .png");
  ExpectRefused("mkdir empty; $heed plot empty",
                "empty/metrics.jsonl: no such file; check the path");
}

TEST_F(Program, PlotsARunAndRefusesToReplaceItsPictures) {
  const ShellResult first = Run("$heed plot run");
  EXPECT_EQ(first.exit_code, 0) << first.err;
  for (const char* name : {"loss.svg", "loss.png", "perplexity.svg", "perplexity.png"}) {
    EXPECT_GT(std::filesystem::file_size(folder_ / ("run/" + std::string(name))), 1000) << name;
  }
  EXPECT_EQ(ReadText(folder_ / "run/loss.png").substr(1, 3), "PNG");
  // The curves are seen all the same.
  const ShellResult again = Run("$heed plot run");
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_EQ(again.out, first.out);
  EXPECT_EQ(again.err, "heed: run/loss.svg: exists already; use --overwrite to replace it\n");
  EXPECT_EQ(Run("$heed plot run --overwrite --quiet").err, "");
  // Nothing but the run's own files is left behind.
  EXPECT_EQ(Run("ls run | wc -l").out, "5\n");
}

TEST_F(Program, JsonIsOneDocument) {
  const ShellResult result = Run("$heed plot run --out a.svg --json");
  EXPECT_EQ(result.exit_code, 0);
  const nlohmann::json document = nlohmann::json::parse(result.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << result.out;
  EXPECT_EQ(document["files"], nlohmann::json({"a.svg"}));
  EXPECT_EQ(document["runs"][0]["points"], 101);
  EXPECT_EQ(document["runs"][0]["train_loss"], 2.0);
  EXPECT_EQ(document["runs"][0]["tokens"], 76800);
  EXPECT_EQ(result.err, "wrote a.svg\n");
  EXPECT_EQ(Run("$heed plot run --out b.svg --json --quiet").err, "");
}

TEST_F(Program, ConfigGivesOptionsAndFlagsWin) {
  WriteText(folder_ / "c.toml", "metric = 'perplexity'\nout = 'p.svg'\n");
  EXPECT_EQ(Run("$heed plot run --config c.toml").exit_code, 0);
  const auto shows = [&](const std::string& file, const std::string& metric) {
    return ReadText(folder_ / file).find("Training " + metric + " of run") != std::string::npos;
  };
  EXPECT_TRUE(shows("p.svg", "perplexity"));
  EXPECT_FALSE(shows("p.svg", "loss"));
  EXPECT_EQ(Run("$heed plot run --config c.toml --metric loss --overwrite").exit_code, 0);
  EXPECT_TRUE(shows("p.svg", "loss"));
  EXPECT_FALSE(shows("p.svg", "perplexity"));
  EXPECT_EQ(Run("$heed plot run --out both.svg").exit_code, 0);
  EXPECT_TRUE(shows("both.svg", "loss"));
  EXPECT_TRUE(shows("both.svg", "perplexity"));
}

TEST_F(Program, AReaderThatLeavesEndsQuietly) {
  const ShellResult gone = Run("{ $heed plot run --out a.svg --quiet; echo $? >code; } | true");
  EXPECT_EQ(gone.err, "");
  EXPECT_EQ(Run("cat code").out, "0\n");
  const ShellResult closed = Run("$heed plot --help >&-");
  EXPECT_EQ(closed.exit_code, 0);
  EXPECT_EQ(closed.err, "");
  // With every stream closed, no file of ours may take the number of one.
  EXPECT_EQ(Run("$heed plot run --out c.svg <&- >&- 2>&-").exit_code, 0);
  EXPECT_EQ(ReadText(folder_ / "c.svg").substr(0, 5), "<?xml");
}

TEST_F(Program, AFullDeviceIsAnError) {
  const ShellResult full = Run("$heed plot --help >/dev/full");
  EXPECT_EQ(full.exit_code, 2);
  EXPECT_EQ(full.err,
            "heed: standard output: No space left on device; write to a place with "
            "room\n");
}

TEST_F(Program, AMissingGnuplotIsNamedAndLeavesNothing) {
  ShellResult result = Run("PATH=/nowhere $heed plot run --out a.svg --quiet");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err, "heed: gnuplot: not installed; install it: apt-get install gnuplot-nox\n");
  EXPECT_EQ(Run("ls").out, "run\n");
}

}  // namespace
}  // namespace heed
