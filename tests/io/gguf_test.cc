// GGUF: what is written is read back, bytes by hand are read, and every known attack is refused.
#include "io/gguf.h"

#include <gmock/gmock.h>

#include "support/shell.h"

namespace heed {
namespace {

using testing::HasSubstr;

// A file built number by number from the format's page.
struct Hand {
  std::string text = "GGUF";
  template <class T>
  Hand& Put(T value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Hand& Text(const std::string& s) {
    Put(uint64_t(s.size()));
    text += s;
    return *this;
  }
  // version 3, counts
  Hand& Head(uint64_t tensors, uint64_t values, uint32_t version = 3) {
    return Put(version).Put(tensors).Put(values);
  }
  Hand& Tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
               uint64_t offset) {
    Text(name).Put(uint32_t(dims.size()));
    for (const uint64_t size : dims) Put(size);
    return Put(type).Put(offset);
  }
  Hand& Data(size_t bytes, size_t alignment = 32) {
    text.resize((text.size() + alignment - 1) / alignment * alignment, '\0');
    text += std::string(bytes, '\1');
    return *this;
  }
};

Result<GgufFile> Parse(const std::string& text) {
  return GgufFile::Parse(std::as_bytes(std::span(text)), "m.gguf");
}

std::string Refusal(const Hand& hand) {
  const auto file = Parse(hand.text);
  EXPECT_FALSE(file) << "accepted";
  if (file) return "";
  EXPECT_EQ(file.error().Message().find('\n'), std::string::npos);
  return file.error().Message();
}

TEST(Gguf, BytesByHandAreRead) {
  Hand hand;
  hand.Head(2, 6);
  hand.Text("a.count").Put(uint32_t{4}).Put(uint32_t{77});
  hand.Text("a.eps").Put(uint32_t{6}).Put(1e-5f);
  hand.Text("a.flag").Put(uint32_t{7}).Put(uint8_t{1});
  hand.Text("a.name").Put(uint32_t{8}).Text("x y");
  hand.Text("a.list").Put(uint32_t{9}).Put(uint32_t{5}).Put(uint64_t{2}).Put(-3).Put(9);
  hand.Text("a.words").Put(uint32_t{9}).Put(uint32_t{8}).Put(uint64_t{2}).Text("p").Text("");
  hand.Tensor("one", {3, 2}, 0, 0).Tensor("two", {5}, 1, 32).Data(32 + 10);
  const auto file = Parse(hand.text);
  ASSERT_TRUE(file) << file.error().Message();
  int64_t count = 0;
  double eps = 0, count_as_number = 0;
  bool flag = false;
  std::string name;
  std::vector<int64_t> list;
  std::vector<std::string> words;
  EXPECT_TRUE(file->Get("a.count", &count) && file->Get("a.count", &count_as_number));
  EXPECT_TRUE(file->Get("a.eps", &eps) && file->Get("a.flag", &flag));
  EXPECT_TRUE(file->Get("a.name", &name) && file->Get("a.list", &list));
  EXPECT_TRUE(file->Get("a.words", &words) && file->Get("absent", &name));
  EXPECT_EQ(count, 77);
  EXPECT_EQ(count_as_number, 77);
  EXPECT_EQ(eps, 1e-5);
  EXPECT_TRUE(flag);
  EXPECT_EQ(name, "x y");
  EXPECT_EQ(list, (std::vector<int64_t>{-3, 9}));
  EXPECT_EQ(words, (std::vector<std::string>{"p", ""}));
  EXPECT_THAT(file->Get("a.name", &count).error().Message(), HasSubstr("a.name: found a string"));
  EXPECT_EQ(file->Find("one")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file->Find("two")->type, BlockType::kF16);
  EXPECT_EQ(file->Bytes(*file->Find("two")).size(), 10u);
}

TEST(Gguf, WrittenIsReadBack) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.gguf";
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i) / 4;
  const std::vector<std::pair<std::string, GgufValue>> metadata = {
      {"n", int64_t{5}},
      {"x", 0.25},
      {"t", true},
      {"s", std::string("text")},
      {"ints", std::vector<int64_t>{1, -2}},
      {"floats", std::vector<double>{0.5}},
      {"strings", std::vector<std::string>{"", "b"}}};
  const std::vector<GgufTensorToWrite> tensors = {
      {"a", BlockType::kF32, {2, 32}, [&] { return values; }},
      {"b",
       BlockType::kBF16,
       {3},
       [&] {
         return std::vector<float>{1, 2, 3};
       }},
      {"c", BlockType::kQ8_0, {2, 32}, [&] { return values; }}};
  ASSERT_TRUE(WriteGguf(path, metadata, tensors, /*overwrite=*/false));
  EXPECT_FALSE(WriteGguf(path, metadata, tensors, /*overwrite=*/false)) << "not overwritten";
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file) << file.error().Message();
  EXPECT_EQ(file->Metadata(), (std::map<std::string, GgufValue>(metadata.begin(), metadata.end())));
  EXPECT_EQ(file->Floats(*file->Find("a")), values);
  EXPECT_EQ(file->Floats(*file->Find("b")), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(file->Find("c")->size, 68u);
}

TEST(Gguf, EveryKnownAttackIsRefused) {
  const uint64_t huge = uint64_t{1} << 63;
  EXPECT_THAT(Refusal(Hand{}), HasSubstr("cut short"));
  EXPECT_THAT(Refusal(Hand{.text = "GGML"}), HasSubstr("no GGUF"));
  EXPECT_THAT(Refusal(Hand{}.Head(0, 0, 1)), HasSubstr("version 1"));
  EXPECT_THAT(Refusal(Hand{}.Head(0, 0, 0x03000000)), HasSubstr("little-endian"));
  EXPECT_THAT(Refusal(Hand{}.Head(huge, 0)), HasSubstr("9223372036854775808 tensors"));
  EXPECT_THAT(Refusal(Hand{}.Head(0, huge)), HasSubstr("9223372036854775808 values"));
  const auto value = [](uint32_t type) {
    Hand hand;
    hand.Head(0, 1).Text("key").Put(type);
    return hand;
  };
  EXPECT_THAT(Refusal(value(8).Put(~uint64_t{0})), HasSubstr("cut short"));
  EXPECT_THAT(Refusal(value(8).Put(huge)), HasSubstr("cut short"));
  EXPECT_THAT(Refusal(value(9).Put(uint32_t{4}).Put(huge)), HasSubstr("values in a list"));
  EXPECT_THAT(Refusal(value(9).Put(uint32_t{8}).Put(uint64_t{1} << 61)),
              HasSubstr("values in a list"));
  EXPECT_THAT(Refusal(value(9).Put(uint32_t{9}).Put(uint64_t{1})), HasSubstr("a list of lists"));
  EXPECT_THAT(Refusal(value(99).Put(huge)), HasSubstr("type 99"));
  EXPECT_THAT(Refusal(value(10).Put(huge)), HasSubstr("below 2^63"));
  EXPECT_THAT(Refusal(value(7).Put(uint8_t{2})), HasSubstr("0 or 1"));
  EXPECT_THAT(Refusal(Hand{}
                          .Head(0, 2)
                          .Text("k")
                          .Put(uint32_t{7})
                          .Put(uint8_t{1})
                          .Text("k")
                          .Put(uint32_t{7})
                          .Put(uint8_t{1})
                          .Put(uint64_t{0})),
              HasSubstr("two values \"k\""));
  const auto aligned = [](auto alignment, uint32_t type) {
    Hand hand;
    hand.Head(0, 1).Text("general.alignment").Put(type).Put(alignment).Data(0);
    return Refusal(hand);
  };
  EXPECT_THAT(aligned(uint32_t{0}, 4), HasSubstr("general.alignment 0"));
  EXPECT_THAT(aligned(uint32_t{24}, 4), HasSubstr("a power of two"));
  EXPECT_THAT(aligned(uint32_t{1} << 31, 4), HasSubstr("a power of two"));
  EXPECT_THAT(aligned(32.0f, 6), HasSubstr("found a number, expected a whole number"));
}

TEST(Gguf, TensorsThatDoNotFitAreRefused) {
  const auto one = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset,
                      size_t bytes) {
    return Refusal(Hand{}.Head(1, 0).Tensor("t", dims, type, offset).Data(bytes));
  };
  EXPECT_THAT(one({}, 0, 0, 4), HasSubstr("0 dimensions"));
  EXPECT_THAT(one({1, 1, 1, 1, 1}, 0, 0, 4), HasSubstr("5 dimensions"));
  EXPECT_THAT(one({4, 0}, 0, 0, 16), HasSubstr("the size 0"));
  EXPECT_THAT(one({uint64_t{1} << 63}, 0, 0, 16), HasSubstr("the size 9223372036854775808"));
  EXPECT_THAT(one({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0, 16), HasSubstr("below 2^60"));
  EXPECT_THAT(one({(uint64_t{1} << 62) + 4}, 0, 0, 16), HasSubstr("below 2^60"));
  EXPECT_THAT(one({4}, 5, 0, 16), HasSubstr("number type 5"));
  EXPECT_THAT(one({33}, 8, 0, 64), HasSubstr("whole blocks of 32"));
  EXPECT_THAT(one({4}, 0, 0, 15), HasSubstr("cut short"));
  EXPECT_THAT(one({4}, 0, 32, 64), HasSubstr("at 32"));
  EXPECT_THAT(one({4}, 0, ~uint64_t{0} - 7, 16), HasSubstr("where the tensor before ends"));
  EXPECT_THAT(one({4}, 0, 0, 100), HasSubstr("bytes after the last tensor"));
  const auto two = [](const char* second, uint64_t offset) {
    return Refusal(
        Hand{}.Head(2, 0).Tensor("a", {4}, 0, 0).Tensor(second, {4}, 0, offset).Data(64));
  };
  EXPECT_THAT(two("b", 0), HasSubstr("\"b\" at 0"));
  EXPECT_THAT(two("b", 16), HasSubstr("\"b\" at 16"));
  EXPECT_THAT(two("a", 32), HasSubstr("two tensors"));
}

}  // namespace
}  // namespace heed
