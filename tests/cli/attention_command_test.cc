// `heed attention` as scripts meet it.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "support/compare.h"
#include "support/shell.h"

namespace heed {
namespace {

class AttentionProgram : public testing::Test {
 protected:
  AttentionProgram() {
    const std::filesystem::path golden = HEED_GOLDEN_DIR;
    std::filesystem::copy(golden / "attention-gqa-rope-half.safetensors",
                          folder_ / "in.safetensors");
    std::filesystem::copy(golden / "attention-gqa-rope-interleaved.npz", folder_ / "in.npz");
  }

  ShellResult Run(const std::string& line) { return Shell(folder_.path(), line); }
  SafetensorsFile Written(const std::string& name) {
    return *SafetensorsFile::Open(folder_ / name);
  }
  void ExpectRefused(const std::string& line, const std::string& message) {
    const ShellResult result = Run(line);
    EXPECT_EQ(result.exit_code, 2) << line;
    EXPECT_EQ(result.out, "") << line;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  }
  // Names in the folder, hidden ones too.
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }

  TemporaryFolder folder_;
};

TEST_F(AttentionProgram, TellsWhatItWrote) {
  const ShellResult result = Run("$heed attention in.safetensors --out out.safetensors");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("\nq_rot               [2, 6, 9, 4]\n"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("\ngrad.q_proj.weight  [24, 24]\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("out.safetensors: causal self-attention of 2 x 9 positions: 6 query "
                            "heads on 2 key/value heads of\n  width 4, 4 of 4 channels rotated "
                            "(half, theta 10000) from position 0, with gradients; computed in\n  "
                            "F64, written in F32\n"),
            std::string::npos)
      << result.out;
  const SafetensorsFile golden = Written("in.safetensors");
  const SafetensorsFile out = Written("out.safetensors");
  EXPECT_LT(RelativeError(*out.Floats("y"), *golden.Doubles("expect.y")), 1e-7);
  EXPECT_EQ(out.metadata().at("n_kv_head"), "2");
}

TEST_F(AttentionProgram, PrintsOneDocument) {
  const ShellResult result = Run("$heed attention in.npz --window 4 --json --out out.safetensors");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["out"], "out.safetensors");
  EXPECT_EQ(json["tensors"]["pattern"], (std::vector<int64_t>{2, 6, 9, 9}));
  EXPECT_EQ(json["tensors"]["k"], (std::vector<int64_t>{2, 3, 9, 4}));
  EXPECT_EQ(json["tensors"].size(), 10u);
  EXPECT_EQ(json["settings"]["n_head"], 6);
  EXPECT_EQ(json["settings"]["rope_pairing"], "interleaved");
  EXPECT_EQ(json["settings"]["rope_theta"], 10000.0);
  EXPECT_EQ(json["settings"]["window"], 4);
}

TEST_F(AttentionProgram, OptionsWinOverTheFile) {
  EXPECT_EQ(Run("$heed attention in.safetensors --out a.safetensors").exit_code, 0);
  EXPECT_EQ(Run("$heed attention in.safetensors --rope_theta=500 --out b.safetensors").exit_code,
            0);
  EXPECT_EQ(Run("$heed attention in.safetensors --position none --out c.safetensors").exit_code, 0);
  EXPECT_EQ(Written("b.safetensors").metadata().at("rope_theta"), "500");
  const std::vector<double> y = *Written("a.safetensors").Doubles("y");
  EXPECT_GT(RelativeError(*Written("b.safetensors").Doubles("y"), y), 1e-3);
  const SafetensorsFile plain = Written("c.safetensors");
  EXPECT_EQ(*plain.Doubles("q_rot"), *plain.Doubles("q"));
}

TEST_F(AttentionProgram, WrongRequestsEndInTwoAndOneLine) {
  const std::vector<std::string> before = Names();
  ExpectRefused("$heed attention --out o", "FILE: found 0 files");
  ExpectRefused("$heed attention in.safetensors in.safetensors --out o", "FILE: found 2 files");
  ExpectRefused("$heed attention in.safetensors", "--out: found nothing");
  ExpectRefused("$heed attention none.safetensors --out o", "none.safetensors: ");
  ExpectRefused("$heed attention in.safetensors --n-heads 4 --out o", "did you mean --n-head?");
  ExpectRefused("$heed attention in.safetensors --n-head 5 --out o",
                "in.safetensors: n_head: found 5");
  ExpectRefused("$heed attention in.safetensors --n-head 0 --out o",
                "in.safetensors: n_head: found 0");
  ExpectRefused("$heed attention in.safetensors --rope-theta nan --out o", "a finite number");
  ExpectRefused("$heed attention in.safetensors --position alibi --out o",
                "learned, sinusoidal, rope or none");
  ExpectRefused("$heed attention in.safetensors --out none/o", "none");
  ExpectRefused("$heed attention in.safetensors --out /dev/full", "/dev/full");
  EXPECT_EQ(Names(), before);
}

TEST_F(AttentionProgram, AnOutputThatExistsIsKept) {
  WriteText(folder_ / "out.safetensors", "mine");
  ExpectRefused("$heed attention in.safetensors --out out.safetensors", "out.safetensors");
  EXPECT_EQ(ReadText(folder_ / "out.safetensors"), "mine");
  EXPECT_EQ(Run("$heed attention in.safetensors --out out.safetensors --overwrite").exit_code, 0);
  EXPECT_NE(Written("out.safetensors").Find("y"), nullptr);
}

TEST_F(AttentionProgram, AFullDeviceIsAnError) {
  for (const char* json : {"", "--json"}) {
    const ShellResult result = Run("$heed attention in.safetensors --overwrite --out o " +
                                   std::string(json) + " > /dev/full");
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  }
}

TEST_F(AttentionProgram, Help) {
  const ShellResult result = Run("$heed attention --help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("--rope-first-position"), std::string::npos);
  EXPECT_NE(result.out.find("Example:\n  heed attention "), std::string::npos);
}

}  // namespace
}  // namespace heed
