// heed diagnose as scripts and people meet it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/planted_attention.h"
#include "support/shell.h"
#include "verify/diagnose/catalogue.h"
#include "verify/diagnose/fault_picture.h"

namespace heed {
namespace {

double AsFloat(double x) { return static_cast<float>(x); }

class DiagnoseProgram : public testing::Test {
 protected:
  // The layer with these faults as layer.safetensors, then the program's arguments.
  ShellResult Run(const std::set<std::string>& faults, const std::string& arguments) {
    const PlantedCase sizes{.B = 2, .T = 7, .H = 6, .Hkv = 3, .D = 8, .C = 26, .rotary_dim = 8};
    PlantedAttention(sizes, faults, AsFloat).Dump().Write(folder_ / "layer.safetensors");
    return Shell(folder_.path(), "$heed diagnose " + arguments);
  }
  TemporaryFolder folder_;
};

TEST_F(DiagnoseProgram, JsonHoldsWhatIsPromised) {
  const ShellResult result = Run({"gqa_tiled"}, "layer.safetensors --json");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.err, "");
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["verdict"], "fault");
  EXPECT_EQ(json["explanations"][0]["faults"], nlohmann::json({"gqa_tiled"}));
  EXPECT_LE(json["explanations"][0]["residual"], json["noise_floor"]);
  EXPECT_GT(json["reference_residual"], 0.01);
  EXPECT_EQ(json["first_difference"]["tensor"], "y");
  EXPECT_EQ(json["first_difference"]["index"], nlohmann::json({0, 0, 0}));
  EXPECT_EQ(json["conventions"]["layout"], "Linear");
  EXPECT_TRUE(json["equal_rows"].is_array());
  EXPECT_TRUE(json["ask_for"].is_array());
}

TEST_F(DiagnoseProgram, ARightLayerEndsInZero) {
  const ShellResult result = Run({}, "layer.safetensors --json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["verdict"], "correct");
  EXPECT_TRUE(json["first_difference"].is_null());
  EXPECT_EQ(json["equal_rows"], nlohmann::json({0, 1, 2, 3, 4, 5, 6}));
}

TEST_F(DiagnoseProgram, TextFitsTheTerminalAndSaysHowToRepair) {
  const ShellResult result = Run({"gqa_tiled", "mask_01_added"}, "layer.safetensors");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_TRUE(result.out.starts_with("fault: gqa_tiled + mask_01_added\n")) << result.out;
  EXPECT_NE(result.out.find("repair"), std::string::npos);
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST_F(DiagnoseProgram, OptionsWinOverTheFile) {
  // The file says half; told interleaved, its numbers are those of the other pairing.
  const ShellResult result = Run({}, "layer.safetensors --rope-pairing interleaved --json");
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["explanations"][0]["faults"], nlohmann::json({"rope_pairing"}));
}

TEST_F(DiagnoseProgram, BadRequestsEndInTwoAndOneLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "0 files"},
      {"layer.safetensors --kind attension", "did you mean attention?"},
      {"layer.safetensors --n-head 5", "n_head"},
      {"missing.safetensors", "missing.safetensors"},
      {"--explain gqa_tild", "did you mean gqa_tiled?"},
      {"--explain nonsense_entirely", "--explain all"},
      {"layer.safetensors --explain gqa_tiled", "--explain alone"}};
  for (const auto& [arguments, words] : cases) {
    const ShellResult result = Run({}, arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(DiagnoseProgram, ExplainsEveryFault) {
  const nlohmann::json all = nlohmann::json::parse(Run({}, "--explain all --json").out);
  EXPECT_GT(all.size(), 60u);
  const ShellResult one = Run({}, "--explain rope_sign");
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_TRUE(one.out.starts_with("rope_sign\n")) << one.out;
}

// The commands of docs/diagnose.md run as they stand there, on a faulty layer.
TEST_F(DiagnoseProgram, DocumentedCommandsRun) {
  Run({"gqa_tiled"}, "layer.safetensors");
  std::filesystem::create_directory(folder_ / "build");
  std::filesystem::create_symlink(HEED_PROGRAM, folder_ / "build/heed");
  // The kind of file is told by its first bytes.
  std::filesystem::copy(folder_ / "layer.safetensors", folder_ / "layer.npz");
  std::istringstream text(ReadText(HEED_SOURCE_DIR "/docs/diagnose.md"));
  int commands = 0;
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("build/heed ")) continue;
    // The page's file has other sizes.
    if (const size_t at = line.find("--n-head"); at != std::string::npos) line.resize(at);
    ++commands;
    const bool explains = line.find("--explain") != std::string::npos;
    const ShellResult result = Shell(folder_.path(), line);
    EXPECT_EQ(result.exit_code, explains ? 0 : 1) << line << "\n" << result.err;
  }
  EXPECT_EQ(commands, 4);
}

// HEED_WRITE_DOCS=1 in the environment writes the pages anew.
TEST(FaultPages, AreWrittenFromTheCatalogue) {
  const std::string folder = HEED_SOURCE_DIR "/docs/faults/";
  const bool writes = std::getenv("HEED_WRITE_DOCS") != nullptr;
  size_t pictures = 0;
  std::set<std::string> seen;
  const auto expect = [&](const std::string& name, const std::string& text) {
    if (writes) WriteText(folder + name, text);
    EXPECT_EQ(ReadText(folder + name), text) << name << ": run cli_test with HEED_WRITE_DOCS=1";
  };
  expect("README.md", FaultIndex());
  for (const DumpKind& kind : DumpKinds()) {
    for (const FaultKind& fault : kind.faults()) {
      const std::string id(fault.id);
      // Faults that several kinds know have the page of the first.
      if (!seen.insert(id).second) continue;
      const std::string picture = FaultPicture(id);
      expect(id + ".md", FaultPage(fault, !picture.empty()));
      if (picture.empty()) continue;
      ++pictures;
      EXPECT_LT(picture.size(), 8000u) << id;
      expect("pictures/" + id + ".svg", picture);
    }
  }
  EXPECT_GT(pictures, 140u);
}

}  // namespace
}  // namespace heed
