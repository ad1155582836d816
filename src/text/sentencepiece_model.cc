#include "text/sentencepiece_model.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <vector>

#include "base/quote.h"
#include "text/bpe_tokenizer.h"
#include "text/utf8.h"

namespace heed {
namespace {

// One field of a message: a number, or bytes.
struct Field {
  uint32_t tag = 0;  // its number in the .proto
  enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 } wire = Wire::kVarint;
  uint64_t number = 0;
  std::string_view bytes;
};

// Walks through the fields of a message. Every step is checked against what is left.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  // The next field; nothing at the end, or when the bytes are damaged: then bad() is true.
  std::optional<Field> Next() {
    if (rest_.empty() || bad_) return std::nullopt;
    Field field;
    const std::optional<uint64_t> key = Varint();
    if (!key || *key >> 3 == 0 || *key >> 32 != 0) return Damaged();
    field.tag = static_cast<uint32_t>(*key >> 3);
    field.wire = static_cast<Field::Wire>(*key & 7);
    switch (field.wire) {
      case Field::Wire::kVarint: {
        const std::optional<uint64_t> number = Varint();
        if (!number) return Damaged();
        field.number = *number;
        return field;
      }
      case Field::Wire::kBytes: {
        const std::optional<uint64_t> size = Varint();
        if (!size || *size > rest_.size()) return Damaged();
        field.bytes = Take(static_cast<size_t>(*size));
        return field;
      }
      case Field::Wire::kFixed32:
      case Field::Wire::kFixed64: {
        const size_t size = field.wire == Field::Wire::kFixed32 ? 4 : 8;
        if (rest_.size() < size) return Damaged();
        std::memcpy(&field.number, Take(size).data(), size);
        return field;
      }
    }
    return Damaged();
  }
  bool bad() const { return bad_; }

 private:
  std::optional<Field> Damaged() {
    bad_ = true;
    return std::nullopt;
  }
  std::string_view Take(size_t n) {
    const std::string_view taken = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return taken;
  }
  // Seven bits a byte, the lowest first; at most ten bytes.
  std::optional<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(Take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  std::string_view rest_;
  bool bad_ = false;
};

// Calls visit(field) for every field; false when the message is damaged.
template <class Visit>
bool ForEachField(std::string_view bytes, const Visit& visit) {
  Message message(bytes);
  while (const std::optional<Field> field = message.Next()) visit(*field);
  return !message.bad();
}

float AsFloat(uint64_t number) {
  const auto bits = static_cast<uint32_t>(number);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// What is read of TrainerSpec and NormalizerSpec, with the .proto's defaults.
struct Spec {
  enum ModelType { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  uint64_t model_type = kUnigram;
  int64_t bos = 1, eos = 2;
  std::string normalizer;
  bool has_map = false, has_rules = false;
  bool dummy_prefix = true, remove_extra_spaces = true, escape_spaces = true;
};

bool ReadPiece(std::string_view bytes, ScoredPiece* piece) {
  uint64_t kind = 1;
  const bool whole = ForEachField(bytes, [&](const Field& field) {
    if (field.tag == 1) piece->text = std::string(field.bytes);
    if (field.tag == 2) piece->score = AsFloat(field.number);
    if (field.tag == 3) kind = field.number;
  });
  piece->kind = static_cast<PieceKind>(kind);
  return whole && kind >= 1 && kind <= 6 && FirstBadUtf8(piece->text) == std::string::npos;
}

bool ReadTrainer(std::string_view bytes, Spec* spec) {
  return ForEachField(bytes, [spec](const Field& field) {
    if (field.tag == 3) spec->model_type = field.number;
    if (field.tag == 41) spec->bos = static_cast<int32_t>(field.number);
    if (field.tag == 42) spec->eos = static_cast<int32_t>(field.number);
  });
}

bool ReadNormalizer(std::string_view bytes, Spec* spec) {
  return ForEachField(bytes, [spec](const Field& field) {
    if (field.tag == 1) spec->normalizer = std::string(field.bytes);
    if (field.tag == 2) spec->has_map = !field.bytes.empty();
    if (field.tag == 3) spec->dummy_prefix = field.number != 0;
    if (field.tag == 4) spec->remove_extra_spaces = field.number != 0;
    if (field.tag == 5) spec->escape_spaces = field.number != 0;
    if (field.tag == 6) spec->has_rules = !field.bytes.empty();
  });
}

Status CheckSpec(const Spec& spec, const std::string& where) {
  if (spec.model_type != Spec::kBpe && spec.model_type != Spec::kChar) {
    const char* name = spec.model_type == Spec::kUnigram ? "unigram"
                       : spec.model_type == Spec::kWord  ? "word"
                                                         : "unknown";
    return Fail(ErrorKind::kFormat, where, fmt::format("a model of the {} type", name),
                "the bpe or char type");
  }
  if (spec.has_map || spec.has_rules) {
    return Fail(ErrorKind::kFormat, where, "the normalizer " + Quoted(spec.normalizer), "identity",
                "only vocabularies that leave the text as it is are read");
  }
  if (!spec.escape_spaces) {
    return Fail(ErrorKind::kFormat, where, "escape_whitespaces off", "on");
  }
  return {};
}

// -1 stands for none.
std::optional<int32_t> ControlToken(int64_t id, std::span<const ScoredPiece> pieces) {
  const bool inside = id >= 0 && id < static_cast<int64_t>(pieces.size());
  if (!inside || pieces[id].kind != PieceKind::kControl) return std::nullopt;
  return static_cast<int32_t>(id);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> ParseSentencePieceModel(std::string_view bytes,
                                                           const std::string& where) {
  std::vector<ScoredPiece> pieces;
  Spec spec;
  bool whole = true;
  whole &= ForEachField(bytes, [&](const Field& field) {
    if (field.wire != Field::Wire::kBytes) return;
    if (field.tag == 1) whole &= ReadPiece(field.bytes, &pieces.emplace_back());
    if (field.tag == 2) whole &= ReadTrainer(field.bytes, &spec);
    if (field.tag == 3) whole &= ReadNormalizer(field.bytes, &spec);
  });
  if (!whole || pieces.empty()) {
    return Fail(ErrorKind::kFormat, where, whole ? "no pieces" : "a damaged message",
                "SentencePiece's tokenizer.model", "copy the file again from its source");
  }
  HEED_TRY(CheckSpec(spec, where));
  HEED_ASSIGN(BpeVocabulary vocabulary, VocabularyFromScores(pieces, where));
  if (spec.model_type == Spec::kChar) vocabulary.merges.clear();
  vocabulary.prefix =
      spec.dummy_prefix ? BpeVocabulary::Prefix::kText : BpeVocabulary::Prefix::kNone;
  vocabulary.collapse_spaces = spec.remove_extra_spaces;
  vocabulary.bos = ControlToken(spec.bos, pieces);
  vocabulary.eos = ControlToken(spec.eos, pieces);
  return BpeTokenizer::Create(std::move(vocabulary), where);
}

}  // namespace heed
