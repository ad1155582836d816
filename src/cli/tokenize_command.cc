#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/plural.h"
#include "base/quote.h"
#include "cli/command.h"
#include "cli/json.h"
#include "data/corpus.h"
#include "model/load.h"
#include "report/format.h"
#include "text/byte_tokenizer.h"
#include "text/utf8.h"

namespace heed {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct TokenizeSettings {
  std::string tokenizer;
  std::string text;
  std::string decode;
  bool count = false;
  bool bos = false;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("tokenizer", self.tokenizer,
          "byte, a vocabulary (tokenizer.json, *.model, *.bin, vocab.json with merges.txt), the "
          "folder of one or of a model, or a .gguf");
    visit("text", self.text, "text to cut, in place of files");
    visit("decode", self.decode, "ids to turn into text, as \"1,2,3\"");
    visit("count", self.count, "only count; files may be larger than memory");
    visit("bos", self.bos, "put the vocabulary's start token first, as a model reads it");
  }
};

constexpr size_t kWidestPiece = 40;
// Backgrounds that go round from token to token.
constexpr int kColours[] = {153, 223, 194, 225, 230};

// A piece as it can be read in one line: new lines and the like escaped, the rest as it is.
std::string Shown(std::string_view piece) {
  if (!IsUtf8(piece)) return Quoted(piece);
  std::string text;
  for (const char c : piece) {
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\r') {
      text += "\\r";
    } else if (c == '\t') {
      text += "\\t";
    } else {
      text += c;
    }
  }
  text = Printable(text);
  if (text.size() > kWidestPiece) {
    text.resize(CharacterStart(text, kWidestPiece));
    text += "...";
  }
  return '"' + text + '"';
}

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes.substr(0, 12)) {
    text += fmt::format("{}{:02x}", text.empty() ? "" : " ", static_cast<uint8_t>(byte));
  }
  return bytes.size() > 12 ? text + " .." : text;
}

Result<std::vector<int32_t>> ParseIds(std::string_view list, int64_t vocab_size) {
  std::vector<int32_t> ids;
  constexpr std::string_view kBetween = ", \t\n[]";
  for (size_t at = 0; (at = list.find_first_not_of(kBetween, at)) != list.npos;) {
    const size_t end = std::min(list.find_first_of(kBetween, at), list.size());
    int32_t id = -1;
    const auto [rest, error] = std::from_chars(list.data() + at, list.data() + end, id);
    if (error != std::errc() || rest != list.data() + end || id < 0 || id >= vocab_size) {
      return BadRequest("--decode", Quoted(list.substr(at, end - at)),
                        fmt::format("ids from 0 to {}", vocab_size - 1));
    }
    ids.push_back(id);
    at = end;
  }
  return ids;
}

class TokenizeRun {
 public:
  TokenizeRun(Session& session, const TokenizeSettings& settings,
              const std::vector<std::string>& files)
      : session_(session), settings_(settings), files_(files) {}

  Result<Verdict> Run() {
    const bool text = session_.options.Given("text"), decode = session_.options.Given("decode");
    if (settings_.tokenizer.empty()) {
      return BadRequest("--tokenizer", "nothing", "a vocabulary, or a model's folder");
    }
    if (text + decode + !files_.empty() != 1) {
      return BadRequest("TEXT FILE, --text, --decode",
                        fmt::format("{} of them", text + decode + !files_.empty()), "one of them");
    }
    if (settings_.tokenizer == "byte") {
      tokenizer_ = std::make_unique<ByteTokenizer>();
    } else {
      HEED_ASSIGN(tokenizer_, OpenVocabulary(settings_.tokenizer));
    }
    if (decode) {
      HEED_TRY(Decode());
    } else {
      HEED_ASSIGN(const Corpus corpus,
                  text ? Corpus::FromString("--text", settings_.text) : Corpus::Open(files_));
      HEED_TRY(settings_.count ? Count(corpus) : Show(corpus));
    }
    return Verdict::kDone;
  }

 private:
  Status Decode() {
    HEED_ASSIGN(const std::vector<int32_t> ids,
                ParseIds(settings_.decode, tokenizer_->vocab_size()));
    const std::string text = tokenizer_->Decode(ids);
    HEED_TRY(session_.terminal.Document(DocumentText({{"text", text}, {"tokens", ids.size()}})));
    return session_.terminal.Say(session_.terminal.out_is_terminal() ? text + "\n" : text);
  }

  Status Count(const Corpus& corpus) {
    HEED_ASSIGN(int64_t tokens, CountTokens(corpus, *tokenizer_));
    if (settings_.bos && tokenizer_->bos()) {
      tokens += static_cast<int64_t>(corpus.parts().size());
    }
    return Summarize(tokens, corpus.bytes(), {});
  }

  Status Summarize(int64_t tokens, int64_t bytes, OrderedJson json) {
    json["tokens"] = tokens;
    json["text_bytes"] = bytes;
    json["vocab_size"] = tokenizer_->vocab_size();
    HEED_TRY(session_.terminal.Document(DocumentText(json)));
    const std::string rate =
        FormatFigure(tokens == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(tokens));
    const std::string text = fmt::format(
        "{} token{} of {} byte{}, {} byte{} a token; a {} vocabulary of {}", FormatCount(tokens),
        Plural(tokens), FormatCount(bytes), Plural(bytes), rate, rate == "1" ? "" : "s",
        tokenizer_->kind(), FormatCount(tokenizer_->vocab_size()));
    return session_.terminal.Say(Wrap(text, session_.terminal.text_width(), 0) + "\n");
  }

  Status Show(const Corpus& corpus) {
    std::vector<int32_t> ids;
    for (const Corpus::Part& part : corpus.parts()) {
      HEED_ASSIGN(std::vector<int32_t> more, tokenizer_->Encode(part.text, {part.name}));
      if (settings_.bos) more = tokenizer_->WithBos(std::move(more));
      ids.insert(ids.end(), more.begin(), more.end());
    }
    const auto tokens = static_cast<int64_t>(ids.size());
    if (session_.terminal.json()) return Summarize(tokens, corpus.bytes(), Json(ids));
    if (session_.terminal.out_has_colour()) HEED_TRY(session_.terminal.Say(Coloured(ids)));
    HEED_TRY(session_.terminal.Say(Table(ids)));
    return Summarize(tokens, corpus.bytes(), {});
  }

  OrderedJson Json(const std::vector<int32_t>& ids) const {
    std::vector<std::string> pieces;
    std::vector<std::vector<uint8_t>> bytes;
    for (const int32_t id : ids) {
      const std::string_view piece = tokenizer_->TokenBytes(id);
      pieces.emplace_back(piece);
      bytes.emplace_back(piece.begin(), piece.end());
    }
    return {{"ids", ids}, {"pieces", pieces}, {"bytes", bytes}};
  }

  // The text itself, every token on a ground of its own. A character that is cut in two takes the
  // colour of its last token: a terminal shows whole characters alone.
  std::string Coloured(const std::vector<int32_t>& ids) const {
    std::string out;
    Utf8Splitter splitter;
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::string text = splitter.Push(tokenizer_->TokenBytes(ids[i]));
      const int colour = kColours[i % std::size(kColours)];
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = Printable(text.substr(at, end - at));
        if (!line.empty()) out += fmt::format("\x1b[38;5;16;48;5;{}m{}\x1b[0m", colour, line);
        if (end < text.size()) out += fmt::format("\x1b[2m\u21B5\x1b[0m\n");
        at = end + 1;
      }
    }
    return out + Printable(splitter.Flush()) + "\n\n";
  }

  std::string Table(const std::vector<int32_t>& ids) const {
    size_t width = std::string_view("bytes").size();
    for (const int32_t id : ids) width = std::max(width, Hex(tokenizer_->TokenBytes(id)).size());
    std::string out =
        ids.empty() ? "" : fmt::format("{:>8}  {:<{}}  {}\n", "id", "bytes", width, "piece");
    for (const int32_t id : ids) {
      const std::string_view piece = tokenizer_->TokenBytes(id);
      out += fmt::format("{:>8}  {:<{}}  {}\n", id, Hex(piece), width, Shown(piece));
    }
    return out;
  }

  Session& session_;
  const TokenizeSettings& settings_;
  const std::vector<std::string>& files_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

Command TokenizeCommand() {
  Command command;
  command.name = "tokenize";
  command.summary = "show how a vocabulary cuts text, count tokens, turn ids into text";
  command.explanation =
      "Prints every token's id, bytes and piece; on a terminal with colours also the text itself. "
      "Reads Hugging Face's tokenizer.json, SentencePiece's tokenizer.model, llama2.c's "
      "tokenizer.bin, GPT-2's vocab.json with merges.txt (or encoder.json with vocab.bpe), "
      "models' folders and GGUF files.";
  command.example =
      "heed tokenize --tokenizer runs/first --text \"Once upon a time\"\n"
      "heed tokenize book.txt --tokenizer gpt2/vocab.json --count\n"
      "heed tokenize --tokenizer tokenizer.model --decode \"9038 2501 263 931\"";
  command.declare = [](Options& options) -> CommandBody {
    auto settings = std::make_shared<TokenizeSettings>();
    auto files = std::make_shared<std::vector<std::string>>();
    options.BindArguments("[TEXT FILE...]", "files and folders of text", files.get());
    options.Bind("Vocabulary and text", *settings);
    return [settings, files](Session& session) {
      return TokenizeRun(session, *settings, *files).Run();
    };
  };
  return command;
}

}  // namespace heed
