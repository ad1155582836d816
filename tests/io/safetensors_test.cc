#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "io/file.h"
#include "support/temporary_folder.h"

namespace heed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A file of `header`, whatever its sense, and `data` bytes of content.
std::string FileOf(const std::string& header, size_t data, uint64_t claimed_length) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &claimed_length, 8);
  return file + header + std::string(data, '\1');
}

std::string FileOf(const std::string& header, size_t data) {
  return FileOf(header, data, header.size());
}

Result<SafetensorsFile> Parse(const std::string& file) {
  return SafetensorsFile::Parse(std::as_bytes(std::span(file)), "evil.safetensors");
}

struct Attack {
  const char* name;
  std::string file;
  const char* message;  // a part of it
};

std::vector<Attack> Attacks() {
  const auto entry = [](const std::string& fields) { return "{\"x\":{" + fields + "}}"; };
  const std::string f32_2 = R"("dtype":"F32","shape":[2],)";
  const std::string good = R"("x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  return {
      {"Empty", "", "found 0 bytes"},
      {"ShorterThanItsLength", "1234567", "found 7 bytes"},
      {"LengthBeyondTheFile", FileOf("{}", 0, 3), "no safetensors header"},
      {"LengthThatOverflows", FileOf("{}", 0, ~uint64_t{0}), "no safetensors header"},
      {"LengthThatWrapsTo2", FileOf("{}", 0, ~uint64_t{0} - 5), "no safetensors header"},
      {"HeaderAboveTheCap", FileOf("{" + std::string(100'000'000, ' ') + "}", 0),
       "no safetensors header"},
      {"HeaderThatIsAnArray", FileOf("[]", 0), "no safetensors header"},
      {"HeaderBehindASpace", FileOf(" {}", 0), "no safetensors header"},
      {"HeaderCutShort", FileOf("{" + good, 8), "stops being JSON"},
      {"TwoHeaders", FileOf("{}{}", 0), "stops being JSON"},
      {"ZeroByteEndsTheHeader", FileOf(std::string("{}\0{\"y\":1}", 10), 0), "zero byte"},
      {"InvalidUtf8InAName",
       FileOf("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0),
       "stops being JSON"},
      {"OverlongUtf8InMetadata", FileOf("{\"__metadata__\":{\"k\":\"\xc0\x80\"}}", 0),
       "stops being JSON"},
      {"LoneSurrogate", FileOf(R"({"__metadata__":{"k":"\ud800"}})", 0), "stops being JSON"},
      {"ControlCharacterInAName", FileOf("{\"a\nb\":{}}", 0), "stops being JSON"},
      {"NestedObjects", FileOf(std::string(1'000'000, '{'), 0), "stops being JSON"},
      {"NestedArraysAsAShape", FileOf(R"({"x":{"shape":)" + std::string(1'000'000, '['), 0),
       "in shape"},
      {"NestedEntries", FileOf(R"({"x":{"y":{"z":{}}}})", 0), "the field \"y\""},
      {"EntryThatIsANumber", FileOf(R"({"x":1})", 0), "found a number"},
      {"EntryThatIsNull", FileOf(R"({"x":null})", 0), "found null"},
      {"NameTwice", FileOf("{" + good + "," + good + "}", 8), "two entries \"x\""},
      {"NameTwiceByEscape",
       FileOf("{" + good + R"(,"\u0078":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "two entries \"x\""},
      {"MetadataTwice", FileOf(R"({"__metadata__":{},"__metadata__":{}})", 0), "two entries"},
      {"MetadataKeyTwice", FileOf(R"({"__metadata__":{"k":"a","k":"b"}})", 0),
       "two metadata keys \"k\""},
      {"MetadataOfANumber", FileOf(R"({"__metadata__":{"k":1}})", 0), "a number as metadata"},
      {"MetadataOfAnObject", FileOf(R"({"__metadata__":{"k":{}}})", 0), "an object as metadata"},
      {"MetadataThatIsAString", FileOf(R"({"__metadata__":"k"})", 0), "a string"},
      {"DtypeTwice", FileOf(entry(R"("dtype":"F32",)" + f32_2 + R"("data_offsets":[0,8])"), 8),
       "two fields \"dtype\""},
      {"ShapeTwice", FileOf(entry(f32_2 + R"("shape":[2],"data_offsets":[0,8])"), 8),
       "two fields \"shape\""},
      {"OffsetsTwice", FileOf(entry(f32_2 + R"("data_offsets":[0,8],"data_offsets":[0,8])"), 8),
       "two fields \"data_offsets\""},
      {"UnknownField", FileOf(entry(f32_2 + R"("data_offsets":[0,8],"strides":[1])"), 8),
       "the field \"strides\""},
      {"NoDtype", FileOf(entry(R"("shape":[2],"data_offsets":[0,8])"), 8), "no dtype"},
      {"NoShape", FileOf(entry(R"("dtype":"F32","data_offsets":[0,8])"), 8), "no shape"},
      {"NoOffsets", FileOf(entry(R"("dtype":"F32","shape":[2])"), 8), "no data_offsets"},
      {"UnknownDtype", FileOf(entry(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"), 8),
       "dtype \"F31\""},
      {"DtypeThatIsANumber", FileOf(entry(R"("dtype":32)"), 8), "a number as dtype"},
      {"ShapeThatIsAString", FileOf(entry(R"("shape":"2")"), 8), "a string in shape"},
      {"NegativeSize", FileOf(entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8),
       "-2 in shape"},
      {"FractionalSize", FileOf(entry(R"("shape":[2.0])"), 8), "a fraction in shape"},
      {"SizeBeyondInt64", FileOf(entry(R"("shape":[9223372036854775808])"), 8),
       "9223372036854775808"},
      {"SizeBeyondUint64", FileOf(entry(R"("shape":[99999999999999999999])"), 8),
       "a fraction in shape"},
      {"SizeBeyondDouble", FileOf(entry(R"("shape":[1e999])"), 8), "stops being JSON"},
      {"ShapeThatOverflows",
       FileOf(entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0),
       "the shape [4294967296, 4294967296]"},
      {"BytesThatOverflow",
       FileOf(entry(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])"), 0),
       "the shape"},
      {"ShapeThatOverflowsBesideZero",
       FileOf(entry(R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"), 0),
       "the shape"},
      {"RankAboveTheCap",
       [&] {
         std::string shape = "1";
         for (int i = 0; i < 64; ++i) shape += ",1";
         return FileOf(entry("\"dtype\":\"U8\",\"shape\":[" + shape + "],\"data_offsets\":[0,1]"),
                       1);
       }(),
       "more than 64 dimensions"},
      {"OneOffset", FileOf(entry(f32_2 + R"("data_offsets":[8])"), 8), "1 data_offsets"},
      {"ThreeOffsets", FileOf(entry(f32_2 + R"("data_offsets":[0,8,8])"), 8), "3 data_offsets"},
      {"OffsetsReversed", FileOf(entry(f32_2 + R"("data_offsets":[8,0])"), 8),
       "data_offsets [8, 0]"},
      {"OffsetsBeyondTheFile", FileOf(entry(f32_2 + R"("data_offsets":[0,8])"), 7), "cut short"},
      {"OffsetsFarBeyondTheFile",
       FileOf(entry(f32_2 + R"("data_offsets":[9223372036854775799,9223372036854775807])"), 8),
       "bytes from 9223372036854775799"},
      {"FewerBytesThanTheShape", FileOf(entry(f32_2 + R"("data_offsets":[0,4])"), 4),
       "found 4 bytes, expected 8 for F32 [2]"},
      {"MoreBytesThanTheShape", FileOf(entry(f32_2 + R"("data_offsets":[0,12])"), 12),
       "found 12 bytes"},
      {"HoleAtTheBegin", FileOf(entry(f32_2 + R"("data_offsets":[4,12])"), 12), "bytes from 4"},
      {"HoleBetweenTensors",
       FileOf("{" + good + R"(,"y":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}})", 10),
       "bytes from 9"},
      {"TensorsThatOverlap",
       FileOf("{" + good + R"(,"y":{"dtype":"U8","shape":[2],"data_offsets":[7,9]}})", 9),
       "bytes from 7"},
      {"TensorsThatShareAllBytes",
       FileOf("{" + good + R"(,"y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "bytes from 0"},
      {"EmptyTensorInsideAnother",
       FileOf("{" + good + R"(,"y":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})", 8),
       "bytes from 4"},
      {"BytesAfterTheLastTensor", FileOf("{" + good + "}", 9), "1 byte after the last tensor"},
      {"BytesOfNoTensor", FileOf("{}", 1), "1 byte after the last tensor"},
  };
}

TEST(Safetensors, RefusesEveryAttack) {
  for (const Attack& attack : Attacks()) {
    SCOPED_TRACE(attack.name);
    const auto file = Parse(attack.file);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().kind, ErrorKind::kFormat);
    EXPECT_THAT(file.error().Message(), HasSubstr(attack.message));
    EXPECT_TRUE(file.error().Message().starts_with("evil.safetensors"));
    EXPECT_LT(file.error().Message().size(), 400u);
  }
}

TEST(Safetensors, EveryPrefixOfAGoodFileIsRefused) {
  const std::string file = FileOf(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  ASSERT_TRUE(Parse(file));
  for (size_t size = 0; size < file.size(); ++size) EXPECT_FALSE(Parse(file.substr(0, size)));
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
  EXPECT_TRUE(Parse(FileOf("{}", 0)));
  EXPECT_TRUE(Parse(FileOf("{}      ", 0)));
  // Empty tensors at the begin, between and at the end, listed in another order than they lie.
  const std::string file = FileOf(
      R"({"c":{"shape":[0],"dtype":"F64","data_offsets":[3,3]},)"
      R"("b":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
      R"("\u00e9":{"dtype":"F16","shape":[1,1],"data_offsets":[1,3]},)"
      R"("a":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]},"__metadata__":{"k":"\u00e9"}})",
      3);
  const auto parsed = Parse(file);
  ASSERT_TRUE(parsed) << parsed.error().Message();
  std::vector<std::string> names;
  for (const TensorEntry& tensor : parsed->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("a", "b", "\u00e9", "c"));
  EXPECT_EQ(parsed->metadata().at("k"), "\u00e9");
  EXPECT_EQ(parsed->Floats("a")->size(), 0u);
  EXPECT_THAT(*parsed->Integers("b"), ElementsAre(1));
  // 0x0101 as F16 is 257 · 2^-24; its bytes lie at an odd place.
  EXPECT_THAT(*parsed->Floats("\u00e9"), ElementsAre(257 * 0x1p-24f));
}

TEST(Safetensors, NamesTheNearestTensorAndTheWrongKind) {
  const std::string file = FileOf(R"({"weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                  R"("ids":{"dtype":"U64","shape":[1],"data_offsets":[8,16]}})",
                                  16);
  auto parsed = Parse(file);
  ASSERT_TRUE(parsed);
  EXPECT_THAT(parsed->Floats("wieght").error().Message(), HasSubstr("nearest name is \"weight\""));
  EXPECT_THAT(parsed->Integers("weight").error().Message(), HasSubstr("whole numbers"));
  EXPECT_THAT(parsed->Doubles("ids").error().Message(), HasSubstr("found U64"));
  std::string large = file;
  large.replace(large.size() - 1, 1, "\xff");
  parsed = Parse(large);
  EXPECT_THAT(parsed->Integers("ids").error().Message(), HasSubstr("2^63"));
}

// Written by another implementation of the format (Python's json and numpy).
TEST(Safetensors, ReadsTheGoldenFiles) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(HEED_GOLDEN_DIR)) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    const auto file = SafetensorsFile::Open(entry.path());
    ASSERT_TRUE(file) << file.error().Message();
    EXPECT_FALSE(file->metadata().empty());
    for (const TensorEntry& tensor : file->tensors()) {
      const bool numbers = IsFloat(tensor.dtype) ? file->Doubles(tensor.name).has_value()
                                                 : file->Integers(tensor.name).has_value();
      EXPECT_TRUE(numbers) << entry.path() << tensor.name;
    }
  }
  EXPECT_GE(files, 22);
  const auto file =
      SafetensorsFile::Open(HEED_GOLDEN_DIR "/attention-gqa-seed-example.safetensors");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->metadata().at("n_kv_head"), "2");
  const TensorEntry* x = file->Find("x");
  ASSERT_NE(x, nullptr);
  EXPECT_THAT(x->shape, ElementsAre(2, 3, 8));
  EXPECT_EQ(x->dtype, DType::kF32);
  // Rows of a softmax, so their sums are known.
  const auto pattern = file->Doubles("expect.pattern");
  ASSERT_TRUE(pattern) << pattern.error().Message();
  ASSERT_EQ(pattern->size(), 72u);
  for (size_t row = 0; row < 24; ++row) {
    const double* p = pattern->data() + 3 * row;
    EXPECT_NEAR(p[0] + p[1] + p[2], 1.0, 1e-6);
    if (row % 3 == 0) {
      EXPECT_EQ(p[0], 1.0);
    }
  }
}

TEST(WriteSafetensors, ComesBackWithEveryByte) {
  const TemporaryFolder folder;
  const std::vector<float> x = {1, -0.0f, std::numeric_limits<float>::infinity(), 4, 5, 6};
  const std::vector<uint16_t> h = {0x3c00, 0xffff, 0x0001};
  const std::vector<int64_t> n = {std::numeric_limits<int64_t>::min(), -1, 7};
  const std::vector<TensorToWrite> tensors = {
      {"h", DType::kBF16, {3}, h.data(), {}},
      {"x", DType::kF32, {2, 3}, x.data(), {}},
      {"n", DType::kI64, {3, 1}, n.data(), {}},
      {"none", DType::kF32, {0}, nullptr, {}},
  };
  const std::map<std::string, std::string> metadata = {{"z", "last"}, {"a", "\"quoted\"\n\u00e9"}};
  ASSERT_TRUE(WriteSafetensors(folder / "f", tensors, metadata, false));
  const auto file = SafetensorsFile::Open(folder / "f");
  ASSERT_TRUE(file) << file.error().Message();
  EXPECT_EQ(file->metadata(), metadata);
  ASSERT_EQ(file->tensors().size(), tensors.size());
  for (const TensorToWrite& tensor : tensors) {
    const TensorEntry* entry = file->Find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->dtype, tensor.dtype);
    EXPECT_EQ(entry->shape, tensor.shape);
    const auto bytes = file->Bytes(*entry);
    if (!bytes.empty()) {
      EXPECT_EQ(std::memcmp(bytes.data(), tensor.data, bytes.size()), 0);
    }
    // The mapping begins at a page, so this is the place in the file.
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % SizeOf(tensor.dtype), 0u) << tensor.name;
  }
}

TEST(WriteSafetensors, HasTheBytesThatTheFormatPromises) {
  const TemporaryFolder folder;
  const float x = 1;
  const TensorToWrite tensor = {"x", DType::kF32, {1}, &x, {}};
  ASSERT_TRUE(WriteSafetensors(folder / "f", {&tensor, 1}, {{"b", "2"}, {"a", "1"}}, false));
  std::string header =
      R"({"__metadata__":{"a":"1","b":"2"},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string want(8, '\0');
  want[0] = static_cast<char>(header.size());
  want += header + std::string("\0\0\x80\x3f", 4);
  EXPECT_EQ(ReadFile(folder / "f", 1000).value(), want);
}

TEST(WriteSafetensors, AsksForDataPieceByPiece) {
  const TemporaryFolder folder;
  const int64_t count = 300'001;  // more than two pieces, the last one ragged
  int64_t next = 0;
  TensorToWrite tensor = {"i", DType::kI32, {count}, nullptr, {}};
  tensor.fill = [&next](int64_t first, std::span<std::byte> out) {
    EXPECT_EQ(first, next);
    for (size_t at = 0; at < out.size(); at += 4) {
      const auto value = static_cast<int32_t>(next++);
      std::memcpy(out.data() + at, &value, 4);
    }
  };
  ASSERT_TRUE(WriteSafetensors(folder / "f", {&tensor, 1}, {}, false));
  const auto file = SafetensorsFile::Open(folder / "f");
  ASSERT_TRUE(file);
  const auto integers = file->Integers("i");
  ASSERT_TRUE(integers);
  ASSERT_EQ(static_cast<int64_t>(integers->size()), count);
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ((*integers)[i], i);
}

TEST(WriteSafetensors, RefusesWhatNoReaderWouldTake) {
  const TemporaryFolder folder;
  const float x = 1;
  const auto message = [&](std::vector<TensorToWrite> tensors,
                           std::map<std::string, std::string> metadata = {}) {
    const Status status = WriteSafetensors(folder / "f", tensors, metadata, false);
    return status ? "" : status.error().Message();
  };
  const TensorToWrite good = {"x", DType::kF32, {1}, &x, {}};
  EXPECT_THAT(message({good, good}), HasSubstr("a name that is taken"));
  EXPECT_THAT(message({{"__metadata__", DType::kF32, {1}, &x, {}}}), HasSubstr("taken"));
  EXPECT_THAT(message({{"\xff", DType::kF32, {1}, &x, {}}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(message({good}, {{"k", "\xed\xa0\x80"}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(message({{"x", DType::kF32, {int64_t{1} << 62}, &x, {}}}), HasSubstr("2^63"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace heed
