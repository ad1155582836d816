// heed convert as a script meets it: formats by the name's ending, the certificate, refusals; and
// the numbers of real models, for which HEED_DATA names the folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "model/load.h"
#include "support/doc_commands.h"

namespace heed {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

class Convert : public testing::Test {
 protected:
  ShellResult Run(const std::string& line) { return Shell(folder_.path(), line); }
  Json Document(const std::string& line) {
    const ShellResult result = Run(line + " --json");
    EXPECT_EQ(result.exit_code, 0) << line << "\n" << result.err;
    return Json::parse(result.out, nullptr, false);
  }
  std::string Refusal(const std::string& line) {
    const ShellResult result = Run(line);
    EXPECT_EQ(result.exit_code, 2) << line;
    EXPECT_EQ(result.err.find('\n') + 1, result.err.size()) << result.err;
    return result.err;
  }
  void Train(const std::string& options) {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "a cab; bad ace\n";
    WriteText(folder_ / "t.txt", text);
    const ShellResult result =
        Run("$heed train t.txt --out run --max-iters 3 --eval-iters 1 --quiet --n-layer 2 "
            "--n-head 4 --n-embd 32 --block-size 16 " +
            options);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  const std::string kLlama = "--position rope --norm rmsnorm --mlp swiglu --no-bias --n-kv-head 2";
  TemporaryFolder folder_;
};

TEST_F(Convert, TheCertificateSaysWhatBecameOfEveryTensor) {
  Train(kLlama);
  const Json gguf = Document("$heed convert run m.gguf");
  EXPECT_EQ(gguf["largest_logit_difference"], 0.0);
  EXPECT_EQ(gguf["used"].size(), 2u + 2 * 9);
  EXPECT_EQ(gguf["used"][0], "model.embed_tokens.weight");
  EXPECT_EQ(gguf["unused"], Json::array());
  EXPECT_EQ(gguf["missing"], Json::array());
  EXPECT_EQ(gguf["dtype"], "f32");
  EXPECT_GT(gguf["largest_logit"], 0.0);
  const Json back = Document("$heed convert m.gguf back");
  EXPECT_EQ(back["largest_logit_difference"], 0.0);
  for (const std::string file : {"model.safetensors", "tokenizer.json"}) {
    EXPECT_EQ(ReadText(folder_ / ("back/" + file)), ReadText(folder_ / ("run/" + file))) << file;
  }
  const Json few = Document("$heed convert run few.gguf --dtype q8_0");
  EXPECT_GT(few["largest_logit_difference"], 0.0);
  EXPECT_LT(few["divergence"], 1e-3);
  const Json fewer = Document("$heed convert run fewer.gguf --dtype q4_0");
  EXPECT_GT(fewer["divergence"], few["divergence"]);
}

// GGUF's GPT-2 has biases and a norm's shift: nothing of them stands in IN.
TEST_F(Convert, TheCertificateNamesBiasesThatWereAdded) {
  Train("--no-bias");
  const Json added = Document("$heed convert run m.gguf")["added"];
  // In each of 2 layers two norms, c_attn, c_proj and the MLP's two; and the last norm.
  ASSERT_EQ(added.size(), 2u * 6 + 1);
  EXPECT_EQ(added[0], "h.0.ln_1.bias");
  const std::string folder = folder_ / "back";
  EXPECT_EQ(Document("$heed convert m.gguf back")["added"], Json::array());
  const auto model = LoadModel(folder, ReferenceKernels());
  ASSERT_TRUE(model) << model.error().Message();
  for (const Json& name : added) {
    const Parameter* const bias = model->model->parameters().Find(name.get<std::string>());
    ASSERT_NE(bias, nullptr) << name;
    EXPECT_EQ(std::ranges::count(std::span(bias->values, bias->elements), 0), bias->elements);
  }
  const ShellResult told = Run("$heed convert run again.gguf");
  EXPECT_THAT(told.out, HasSubstr("  13 tensors added that run leaves out, all of them 0: "
                                  "h.0.ln_1.bias to ln_f.bias\n"));
  Train("--bias --overwrite");
  EXPECT_EQ(Document("$heed convert run biased.gguf")["added"], Json::array());
}

TEST_F(Convert, EveryCommandRunsAGguf) {
  Train(kLlama);
  Document("$heed convert run m.gguf");
  EXPECT_EQ(Document("$heed eval m.gguf t.txt"), Document("$heed eval run t.txt"));
  const std::string generate = " --prompt a --temperature 0 --max-tokens 12 --quiet";
  EXPECT_EQ(Document("$heed generate m.gguf" + generate)["samples"][0]["tokens"],
            Document("$heed generate run" + generate)["samples"][0]["tokens"]);
  EXPECT_EQ(Document("$heed info m.gguf")["dtype"], "f32");
  EXPECT_EQ(Document("$heed attention m.gguf --text 'a cab'")["heads"].size(), 2u * 4);
  EXPECT_EQ(Document("$heed ledger m.gguf")["parameters"],
            Document("$heed ledger run")["parameters"]);
  EXPECT_EQ(Run("$heed check m.gguf --quiet").exit_code, 0);
}

// GGUF keeps gains and biases in f32, and a folder of a file in f16 loses nothing of them.
TEST_F(Convert, FewBitsInGgufLoseNothingMoreInAFolder) {
  Train(kLlama);
  ASSERT_EQ(Run("$heed convert run small.gguf --dtype f16").exit_code, 0);
  const Json json = Document("$heed convert small.gguf back");
  EXPECT_EQ(json["dtype"], "f16");
  EXPECT_EQ(json["verdict"], "ok");
  EXPECT_EQ(json["largest_logit_difference"], 0.0);
  EXPECT_THAT(Refusal("$heed convert run other --how first"), HasSubstr("--how: found no --n-kv"));
  EXPECT_THAT(Refusal("$heed convert run other --n-kv-head 0"), HasSubstr("--n-kv-head: found 0"));
}

TEST_F(Convert, HeadsAreGrouped) {
  Train("");
  const Json json = Document("$heed convert run grouped --n-kv-head 2");
  EXPECT_GT(json["largest_logit_difference"], 0.0);
  const Json config = Json::parse(ReadText(folder_ / "grouped/config.json"));
  EXPECT_EQ(config["model_type"], "heed");
  EXPECT_EQ(config["n_kv_head"], 2);
  EXPECT_EQ(Document("$heed convert run first --n-kv-head 2 --how first")["verdict"], "ok");
  EXPECT_THAT(Refusal("$heed convert run g3 --n-kv-head 3"), HasSubstr("n_kv_head: found 3"));
  EXPECT_THAT(Refusal("$heed convert grouped g.gguf"), HasSubstr("a mix that no architecture has"));
  EXPECT_THAT(Refusal("$heed convert grouped g.bin"),
              HasSubstr("g.bin: found a model that is not"));
}

TEST_F(Convert, WhatCannotBeIsRefusedInOneLine) {
  Train(kLlama);
  EXPECT_THAT(Refusal("$heed convert run"), HasSubstr("IN OUT"));
  EXPECT_THAT(Refusal("$heed convert run x --dtype q8_0"), HasSubstr("--dtype: found q8_0"));
  EXPECT_THAT(Refusal("$heed convert run x.bin --dtype bf16"), HasSubstr("--dtype: found bf16"));
  EXPECT_THAT(Refusal("$heed convert run x.bin --bin-version 2"), HasSubstr("0 or 1"));
  EXPECT_THAT(Refusal("$heed convert nowhere x.gguf"), HasSubstr("nowhere: found nothing"));
  Document("$heed convert run m.gguf");
  EXPECT_THAT(Refusal("$heed convert run m.gguf"), HasSubstr("m.gguf"));
  EXPECT_EQ(Run("$heed convert run m.gguf --overwrite").exit_code, 0);
  WriteText(folder_ / "torch.bin", "PK\x03\x04 archive/data.pkl");
  EXPECT_THAT(Refusal("$heed convert torch.bin x"), HasSubstr("pickle"));
  WriteText(folder_ / "cut.gguf", ReadText(folder_ / "m.gguf").substr(0, 900));
  EXPECT_THAT(Refusal("$heed info cut.gguf"), HasSubstr("cut.gguf"));
}

TEST_F(Convert, EveryCommandOfItsPageRuns) {
  std::filesystem::create_directory(folder_ / "build");
  std::filesystem::create_symlink(HEED_PROGRAM, folder_ / "build/heed");
  Train(kLlama);
  std::filesystem::create_directory(folder_ / "runs");
  std::filesystem::rename(folder_ / "run", folder_ / "runs/first");
  const std::vector<std::string> commands = DocCommands("docs/formats.md");
  EXPECT_GE(commands.size(), 5u);
  for (const std::string& command : commands) {
    const ShellResult result = Run(command);
    EXPECT_EQ(result.exit_code, 0) << command << "\n" << result.err;
  }
}

// A row of 32 numbers in blocks of bytes is off by half a step of 1/127 of the largest at most, in
// four bits by half of 1/8: what that does to the loss of a model so small is less than either.
TEST_F(Convert, AModelThatIsOnlyReadCanBeReadInFewBits) {
  for (const std::string& kind : {kLlama, std::string()}) {
    Train("--overwrite --max-iters 30 " + kind);
    const auto loss = [&](const std::string& model, const std::string& dtype) {
      return Document("$heed eval " + model + " t.txt --dtype " + dtype)["loss"].get<double>();
    };
    const double exact = loss("run", "f32");
    EXPECT_EQ(Document("$heed eval run t.txt")["loss"], exact);
    EXPECT_EQ(loss("run", "file"), exact);
    for (const auto& [dtype, bound] :
         {std::pair<std::string, double>{"bf16", 0.004}, {"q8_0", 0.004}, {"q4_0", 0.06}}) {
      const double few = loss("run", dtype);
      EXPECT_NE(few, exact) << dtype;
      EXPECT_NEAR(few, exact, bound * exact) << dtype;
      const std::string file = dtype + ".gguf";
      Document("$heed convert run " + file + " --overwrite --dtype " + dtype);
      EXPECT_NEAR(loss(file, "f32"), exact, bound * exact) << dtype;
      EXPECT_NEAR(loss(file, "file"), loss(file, "f32"), 0.004 * exact) << dtype;
      const std::string generate = "$heed generate " + file + " --prompt a --max-tokens 9";
      EXPECT_EQ(Document(generate)["samples"][0]["tokens"],
                Document(generate + " --dtype file")["samples"][0]["tokens"]);
      EXPECT_EQ(Run(generate + " --reference --quiet --temperature 0").out,
                Run(generate + " --quiet --temperature 0").out);
    }
  }
  EXPECT_THAT(Refusal("$heed eval run t.txt --dtype f16"), HasSubstr("--dtype"));
  EXPECT_THAT(Refusal("$heed bench --dtype q8_0"), HasSubstr("f32 or bf16 in training"));
}

// llama.cpp, as the npm package node-llama-cpp has it, answers the tokens that heed does. The
// package's folder is named by HEED_NODE_LLAMA_CPP, which holds node_modules.
TEST_F(Convert, LlamaCppAnswersTheSameTokens) {
  const char* node_modules = std::getenv("HEED_NODE_LLAMA_CPP");
  if (node_modules == nullptr) GTEST_SKIP() << "HEED_NODE_LLAMA_CPP names no folder";
  const std::string mixes[] = {kLlama, "", kLlama + " --no-tied"};
  for (size_t i = 0; i < std::size(mixes); ++i) {
    SCOPED_TRACE(mixes[i]);
    Train("--overwrite --max-iters 200 --learning-rate 0.003 " + mixes[i]);
    const std::string prompt = " --prompt 'a cab; ' --temperature 0 --max-tokens 8 --quiet";
    const Json sample = Document("$heed generate run" + prompt)["samples"][0];
    std::string ids;
    for (const Json& id : sample["prompt_tokens"]) ids += " " + id.dump();
    for (const std::string dtype : {"f32", "q8_0"}) {
      const std::string file = dtype + std::to_string(i) + ".gguf";
      Document("$heed convert run " + file + " --dtype " + dtype);
      const ShellResult theirs =
          Run("cd '" + std::string(node_modules) +
              "' && node '" HEED_SOURCE_DIR "/tests/cli/llama_cpp_greedy.mjs' '" +
              (folder_ / file) + "' 8" + ids);
      EXPECT_EQ(theirs.exit_code, 0) << theirs.err;
      EXPECT_EQ(Json::parse(theirs.out, nullptr, false), sample["tokens"]) << dtype;
    }
  }
}

}  // namespace
}  // namespace heed
