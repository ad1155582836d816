#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "base/plural.h"
#include "base/random.h"
#include "cli/command.h"
#include "cli/json.h"
#include "eval/divergence.h"
#include "io/file.h"
#include "model/folder.h"
#include "model/gguf_model.h"
#include "model/group_heads.h"
#include "model/llama2c_model.h"
#include "report/format.h"
#include "text/scored_pieces.h"

namespace heed {
namespace {

// What the weights are stored as: as in IN where that is a plain float, or one of these.
enum class StoredType { kSame, kF32, kF16, kBF16, kQ8_0, kQ4_0 };

std::span<const EnumName<StoredType>> EnumNames(StoredType) {
  static constexpr EnumName<StoredType> kNames[] = {
      {StoredType::kSame, "same"}, {StoredType::kF32, "f32"},   {StoredType::kF16, "f16"},
      {StoredType::kBF16, "bf16"}, {StoredType::kQ8_0, "q8_0"}, {StoredType::kQ4_0, "q4_0"}};
  return kNames;
}

struct ConvertSettings {
  StoredType dtype = StoredType::kSame;
  int64_t n_kv_head = 0;
  HeadPooling how = HeadPooling::kMean;
  std::string tokenizer;
  int64_t bin_version = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("dtype", self.dtype, "number type of the weights; q8_0 and q4_0 only in .gguf");
    visit("n_kv_head", self.n_kv_head, "turn the key/value heads into this many");
    visit("how", self.how, "what a key/value head becomes of its group");
    visit("tokenizer", self.tokenizer, "vocabulary, in place of the one that IN has");
    visit("bin_version", self.bin_version, "of llama2.c's format: 0 or 1");
  }
};

constexpr int64_t kMostTokens = 64;  // on which logits are compared

// Fixed tokens, the same for every model of that vocabulary.
std::vector<int32_t> FixedTokens(const ModelConfig& c) {
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(c.block_size, kMostTokens)));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(RandomBelow({1, 0, kTextStream}, i, c.vocab_size));
  }
  return tokens;
}

Result<BlockType> TypeToStore(const ConvertSettings& s, const LoadReport& report,
                              CheckpointFormat out) {
  BlockType type = report.type;
  if (s.dtype != StoredType::kSame) ValueOf(NameOf(s.dtype), &type);
  const bool plain = SizeOf(type).elements == 1;
  if (out == CheckpointFormat::kHuggingFace && !plain) {
    return BadRequest("--dtype", std::string(NameOf(type)), "f32, f16 or bf16 in a folder",
                      "name OUT something.gguf");
  }
  if (out != CheckpointFormat::kLlama2c || type == BlockType::kF32) return type;
  if (s.dtype == StoredType::kSame) return BlockType::kF32;
  return BadRequest("--dtype", std::string(NameOf(type)), "f32 in a .bin of llama2.c");
}

DType PlainType(BlockType type) {
  return type == BlockType::kF16    ? DType::kF16
         : type == BlockType::kBF16 ? DType::kBF16
                                    : DType::kF32;
}

class Conversion {
 public:
  Conversion(Session& session, const ConvertSettings& settings)
      : session_(session), settings_(settings) {}

  Result<Verdict> Run(const std::vector<std::string>& paths) {
    if (paths.size() != 2) {
      return BadRequest("IN OUT", fmt::format("{} arguments", paths.size()),
                        "what to read and what to write");
    }
    if (settings_.bin_version != 0 && settings_.bin_version != 1) {
      return BadRequest("--bin-version", fmt::format("{}", settings_.bin_version), "0 or 1");
    }
    if (session_.options.Given("n_kv_head") && settings_.n_kv_head < 1) {
      return BadRequest("--n-kv-head", fmt::format("{}", settings_.n_kv_head), "1 or more");
    }
    if (session_.options.Given("how") && settings_.n_kv_head == 0) {
      return BadRequest("--how", "no --n-kv-head beside it", "the number of key/value heads");
    }
    in_ = paths[0];
    out_ = paths[1];
    HEED_ASSIGN(before_, LoadModel(in_, kernels(), settings_.tokenizer));
    HEED_ASSIGN(type_, TypeToStore(settings_, before_.report, FormatOf(out_)));
    HEED_TRY(Save());
    HEED_ASSIGN(after_, LoadModel(out_, kernels()));
    HEED_ASSIGN(difference_,
                CompareModels(*before_.model, *after_.model, FixedTokens(before_.model->config())));
    HEED_TRY(Report());
    return IsAsPromised() ? Verdict::kDone : Verdict::kNegative;
  }

 private:
  const Kernels& kernels() const {
    return session_.globals.reference ? ReferenceKernels() : SimdKernels();
  }

  Status Save() {
    std::unique_ptr<Gpt> grouped;
    if (settings_.n_kv_head != 0) {
      HEED_ASSIGN(grouped, GroupHeads(*before_.model, settings_.n_kv_head, settings_.how,
                                      static_cast<uint64_t>(session_.globals.seed)));
    }
    const Gpt& model = grouped ? *grouped : *before_.model;
    const Tokenizer* tokenizer = before_.tokenizer ? before_.tokenizer->get() : nullptr;
    const bool overwrite = session_.globals.overwrite;
    switch (FormatOf(out_)) {
      case CheckpointFormat::kGguf:
        return SaveGguf(out_, model, tokenizer, type_, overwrite);
      case CheckpointFormat::kLlama2c:
        HEED_TRY(SaveVocabulary());
        return SaveLlama2c(out_, model, static_cast<int>(settings_.bin_version), overwrite);
      case CheckpointFormat::kHuggingFace:
        return SaveModel(out_, model, tokenizer, overwrite,
                         {PlainType(type_), PlainType(VectorType())});
    }
    return {};
  }

  // llama2.c's vocabulary lies beside its checkpoint, where it can be told in that format.
  Status SaveVocabulary() {
    if (!before_.tokenizer) return {};
    const Tokenizer& tokenizer = **before_.tokenizer;
    const std::optional<std::string> text = TokenizerBin(tokenizer);
    const std::string path = VocabularyBeside(out_);
    if (!text || tokenizer.vocab_size() != before_.model->config().vocab_size) {
      note_ = "the vocabulary has no place in llama2.c's tokenizer.bin and was left out";
      return {};
    }
    const Result<std::string> there = ReadFile(path, text->size());
    if (there && *there == *text) return {};
    const std::string_view piece = *text;
    return WriteFileAtomically(path, {&piece, 1}, session_.globals.overwrite);
  }

  // GGUF keeps gains and biases in f32 and matrices in fewer bits; a folder that shall lose nothing
  // does the same. An asked-for type is for all.
  BlockType VectorType() const {
    if (FormatOf(out_) != CheckpointFormat::kHuggingFace) return BlockType::kF32;
    return settings_.dtype == StoredType::kSame ? before_.report.vector_type : type_;
  }

  // Numbers that were only widened or moved make the same logits.
  bool IsAsPromised() const {
    const auto keeps = [](BlockType stored, BlockType given) {
      return stored == BlockType::kF32 || stored == given;
    };
    const LoadReport& given = before_.report;
    const bool exact = settings_.n_kv_head == 0 && keeps(type_, given.type) &&
                       keeps(VectorType(), given.vector_type);
    return std::isfinite(difference_.largest) && (!exact || difference_.largest == 0);
  }

  // Tensors of OUT that IN leaves out: a GPT-2 without biases becomes a GGUF with biases of 0.
  std::vector<std::string> Added() const {
    std::vector<std::string> names;
    for (const Parameter& p : after_.model->parameters().all()) {
      if (before_.model->parameters().Find(p.name) == nullptr) names.push_back(p.name);
    }
    return names;
  }

  Status Report() {
    const LoadReport& report = before_.report;
    const std::vector<std::string> added = Added();
    const nlohmann::ordered_json json = {
        {"in", in_},
        {"out", out_},
        {"dtype", NameOf(type_)},
        {"parameters", after_.model->parameters().elements()},
        {"used", report.used},
        {"unused", report.unused},
        {"missing", nlohmann::json::array()},  // with one missing, IN is refused
        {"added", added},
        {"compared_tokens", FixedTokens(before_.model->config()).size()},
        {"largest_logit", difference_.largest_logit},
        {"largest_logit_difference", difference_.largest},
        {"divergence", difference_.divergence},
        {"verdict", IsAsPromised() ? "ok" : "failed"}};
    HEED_TRY(session_.terminal.Document(DocumentText(json)));
    std::string text =
        fmt::format("{}: {} parameters as {}\n", out_,
                    FormatCount(after_.model->parameters().elements()), NameOf(type_));
    const auto line = [&](const std::string& words) {
      text += "  " + Wrap(words, session_.terminal.text_width() - 4, 4) + "\n";
    };
    line(fmt::format("tensors of {}: {} used, {} unused, 0 missing", in_, report.used.size(),
                     report.unused.size()));
    for (const std::string& name : report.unused) text += "    unused " + name + "\n";
    if (!added.empty()) {
      line(fmt::format("{} tensor{} added that {} leaves out, all of them 0: {}{}", added.size(),
                       Plural(std::ssize(added)), in_, added.front(),
                       added.size() == 1 ? "" : " to " + added.back()));
    }
    line(fmt::format("largest difference of logits {} of {}, divergence {} nats a token",
                     FormatFigure(difference_.largest), FormatFigure(difference_.largest_logit),
                     FormatFigure(difference_.divergence)));
    if (!note_.empty()) line(note_);
    if (!before_.tokenizer) line("no vocabulary: " + before_.tokenizer.error().Message());
    return session_.terminal.Say(text);
  }

  Session& session_;
  const ConvertSettings& settings_;
  std::string in_, out_, note_;
  LoadedModel before_, after_;
  BlockType type_ = BlockType::kF32;
  LogitDifference difference_;
};

}  // namespace

Command ConvertCommand() {
  Command command;
  command.name = "convert";
  command.summary = "a model from one format to another, with a certificate";
  command.explanation =
      "Reads and writes folders in Hugging Face's layout, GGUF (.gguf) and llama2.c's checkpoints "
      "(.bin), told by the name's ending. OUT is read back, and both models answer the same fixed "
      "tokens: the certificate tells the largest difference of their logits and what became of "
      "every tensor of IN. Exit code 1 when numbers that should be the same are not.";
  command.example =
      "heed convert runs/first first.gguf --dtype q8_0\n"
      "heed convert stories260K.bin stories --tokenizer tok512.bin\n"
      "heed convert runs/first runs/grouped --n-kv-head 2";
  command.takes_reference = true;
  command.takes_overwrite = true;
  command.declare = [](Options& options) -> CommandBody {
    auto settings = std::make_shared<ConvertSettings>();
    auto paths = std::make_shared<std::vector<std::string>>();
    options.BindArguments("IN OUT", "a model (its folder, .gguf or .bin), then the same to write",
                          paths.get());
    options.Bind("Conversion", *settings);
    return
        [settings, paths](Session& session) { return Conversion(session, *settings).Run(*paths); };
  };
  return command;
}

}  // namespace heed
