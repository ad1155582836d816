#include "io/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "io/tensor_file.h"
#include "support/temporary_folder.h"

namespace heed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
std::string Raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

std::string Npy(const std::string& dictionary, const std::string& data, int version = 1) {
  const std::string length = version == 1 ? Raw(static_cast<uint16_t>(dictionary.size()))
                                          : Raw(static_cast<uint32_t>(dictionary.size()));
  return "\x93NUMPY" + std::string{static_cast<char>(version), '\0'} + length + dictionary + data;
}

std::string Dictionary(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
}

const std::string kFloats = Npy(Dictionary("<f4", "(2,)"), Raw(1.5f) + Raw(-2.0f));

std::string Deflate(const std::string& data) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, data.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

struct Member {
  std::string name = "x.npy";
  std::string data = kFloats;
  uint16_t method = 0;
  uint16_t flags = 0;
  std::string local_name = name;
  std::string packed = method == 8 ? Deflate(data) : data;
  uint32_t crc = static_cast<uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
  uint32_t size = static_cast<uint32_t>(data.size());
  uint32_t packed_size = static_cast<uint32_t>(packed.size());
  std::string extra = {};
  int64_t offset = -1;  // of the local header; -1: where it is
};

// APPNOTE 4.3: local headers and data, the directory, the end record.
std::string Zip(const std::vector<Member>& members, const std::string& end_prefix = "",
                uint16_t entries_more = 0, const std::string& comment = "") {
  std::string zip, directory;
  for (const Member& m : members) {
    const uint32_t offset = m.offset < 0 ? zip.size() : m.offset;
    const std::string common = Raw(uint16_t{20}) + Raw(m.flags) + Raw(m.method) + Raw(uint32_t{0}) +
                               Raw(m.crc) + Raw(m.packed_size) + Raw(m.size);
    const auto name_size = static_cast<uint16_t>(m.name.size());
    zip += "PK\3\4" + common + Raw(static_cast<uint16_t>(m.local_name.size())) + Raw(uint16_t{0}) +
           m.local_name + m.packed;
    directory += "PK\1\2" + Raw(uint16_t{20}) + common + Raw(name_size) +
                 Raw(static_cast<uint16_t>(m.extra.size())) + std::string(6, '\0') +
                 std::string(4, '\0') + Raw(offset) + m.name + m.extra;
  }
  const auto at = static_cast<uint32_t>(zip.size());
  const auto count = static_cast<uint16_t>(members.size() + entries_more);
  return zip + directory + end_prefix + "PK\5\6" + std::string(4, '\0') + Raw(count) + Raw(count) +
         Raw(static_cast<uint32_t>(directory.size())) + Raw(at) +
         Raw(static_cast<uint16_t>(comment.size())) + comment;
}

Result<NpzFile> Parse(std::string file) {
  // The bytes must outlive the result.
  static std::deque<std::string> kept;
  return NpzFile::Parse(std::as_bytes(std::span(kept.emplace_back(std::move(file)))),
                        "dir/evil.npy");
}

// numpy 1.24.2 wrote these with savez and savez_compressed. In every number type of both byte
// orders: arange(6).reshape(2, 3), minus 1 where the type has a sign.
TEST(Npz, ReadsWhatNumpyWrites) {
  for (const char* name : {"/numpy-stored.npz", "/numpy-deflated.npz"}) {
    SCOPED_TRACE(name);
    const auto file = NpzFile::Open(std::string(HEED_GOLDEN_DIR) + name);
    ASSERT_TRUE(file) << file.error().Message();
    for (const std::string order : {"little.", "big."}) {
      for (const char* type : {"f8", "f4", "f2"}) {
        EXPECT_THAT(*file->Doubles(order + type), ElementsAre(-1, 0, 1, 2, 3, 4)) << type;
        EXPECT_THAT(*file->Floats(order + type), ElementsAre(-1, 0, 1, 2, 3, 4)) << type;
        EXPECT_THAT(file->Find(order + type)->shape, ElementsAre(2, 3));
      }
      for (const char* type : {"i8", "i4", "i2"}) {
        EXPECT_THAT(*file->Integers(order + type), ElementsAre(-1, 0, 1, 2, 3, 4)) << type;
      }
      for (const char* type : {"u8", "u4", "u2"}) {
        EXPECT_THAT(*file->Integers(order + type), ElementsAre(0, 1, 2, 3, 4, 5)) << type;
      }
    }
    EXPECT_THAT(*file->Integers("i1"), ElementsAre(-1, 0, 1, 2, 3, 4));
    EXPECT_THAT(*file->Integers("u1"), ElementsAre(0, 1, 2, 3, 4, 5));
    EXPECT_THAT(*file->Integers("b1"), ElementsAre(0, 0, 1, 1, 1, 1));
    EXPECT_EQ(file->Find("b1")->dtype, DType::kBool);
    // Stored with the first index fastest, and big-endian.
    EXPECT_THAT(file->Find("fortran")->shape, ElementsAre(2, 3, 4));
    const auto fortran = file->Floats("fortran");
    ASSERT_TRUE(fortran);
    for (int i = 0; i < 24; ++i) EXPECT_EQ((*fortran)[i], i);
    EXPECT_EQ(file->Floats("empty")->size(), 0u);
    EXPECT_THAT(file->Find("empty")->shape, ElementsAre(0, 3));
    EXPECT_EQ(file->strings().at("position"), "rope");
    EXPECT_EQ(file->strings().at("rope_pairing"), "half");
    EXPECT_EQ(file->strings().at("name"), "h\u00e9\U0001F600");
  }
}

TEST(Npz, ReadsEveryVersionOfTheHeader) {
  for (const int version : {1, 2, 3}) {
    const auto file = Parse(Npy(Dictionary("<f4", "(1,)"), Raw(2.5f), version));
    ASSERT_TRUE(file) << file.error().Message();
    EXPECT_THAT(*file->Floats("evil"), ElementsAre(2.5f));
  }
  // Any order of keys, either quote, Python 2's long sizes, no comma at the end.
  const auto file =
      Parse(Npy(R"({"shape":(1L,2L),"fortran_order":True,"descr":"<f4"})", Raw(1.0f) + Raw(2.0f)));
  ASSERT_TRUE(file) << file.error().Message();
  EXPECT_THAT(*file->Floats("evil"), ElementsAre(1, 2));
}

TEST(Npz, NamesMayHoldFoldersAndPoints) {
  const auto file = Parse(Zip({{.name = "h.0/w.npy"}, {.name = "h.1/w.npy"}, {.name = ".npy"}}));
  ASSERT_TRUE(file) << file.error().Message();
  EXPECT_NE(file->Find("h.0/w"), nullptr);
  EXPECT_NE(file->Find("h.1/w"), nullptr);
  EXPECT_NE(file->Find(""), nullptr);
  EXPECT_EQ(file->tensors().size(), 3u);
}

TEST(Npz, ReadsZip64AndComments) {
  Member m;
  m.extra =
      Raw(uint16_t{1}) + Raw(uint16_t{16}) + Raw(uint64_t{m.size}) + Raw(uint64_t{m.packed_size});
  m.size = m.packed_size = 0xffffffff;
  const auto file = Parse(Zip({m}, "", 0, "a comment"));
  ASSERT_TRUE(file) << file.error().Message();
  EXPECT_THAT(*file->Floats("x"), ElementsAre(1.5f, -2.0f));

  // With a zip64 end record, which alone says where the directory is.
  std::string zip = Zip({{}});
  std::string end = zip.substr(zip.size() - 22);
  zip.resize(zip.size() - 22);
  uint32_t size = 0, at = 0;
  std::memcpy(&size, end.data() + 12, 4);
  std::memcpy(&at, end.data() + 16, 4);
  const uint64_t end64_at = zip.size();
  zip += "PK\6\6" + Raw(uint64_t{44}) + Raw(uint32_t{0}) + std::string(8, '\0') + Raw(uint64_t{1}) +
         Raw(uint64_t{1}) + Raw(uint64_t{size}) + Raw(uint64_t{at});
  const std::string locator = "PK\6\7" + Raw(uint32_t{0}) + Raw(end64_at) + Raw(uint32_t{1});
  end.replace(8, 12, std::string(12, '\xff'));
  const auto file64 = Parse(zip + locator + end);
  ASSERT_TRUE(file64) << file64.error().Message();
  EXPECT_THAT(*file64->Floats("x"), ElementsAre(1.5f, -2.0f));

  EXPECT_THAT(Parse(zip + end).error().Message(), HasSubstr("zip64 locator"));
  const std::string astray = "PK\6\7" + Raw(uint32_t{0}) + Raw(~uint64_t{0}) + Raw(uint32_t{1});
  EXPECT_THAT(Parse(zip + astray + end).error().Message(), HasSubstr("zip64 end record"));
}

TEST(Npz, RefusesEveryBadArray) {
  const std::string two = Raw(1.5f) + Raw(-2.0f);
  const struct {
    const char* name;
    std::string file;
    const char* message;
  } attacks[] = {
      {"OnlyTheMagic", "\x93NUMPY", "no .npy header"},
      {"UnknownVersion", Npy(Dictionary("<f4", "(2,)"), two, 4), "format 4.0"},
      {"HeaderBeyondTheFile", std::string("\x93NUMPY\1\0\xff\xff{}  ", 14), "65535 bytes"},
      {"HeaderAboveTheCap", std::string("\x93NUMPY\2\0\xff\xff\xff\xff", 12) + two, "4294967295"},
      {"NoDictionary", Npy("[]", two), "a header that is not read"},
      {"OpenDictionary", Npy("{'descr': '<f4'", two), "a header that is not read"},
      {"RestBehindTheDictionary", Npy(Dictionary("<f4", "(2,)") + "x", two), "not read"},
      {"KeyTwice",
       Npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", two),
       "not read"},
      {"KeyMissing", Npy("{'descr': '<f4', 'shape': (2,)}", two), "not read"},
      {"UnknownKey", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'a': 1}", two),
       "not read"},
      {"PythonInTheShape", Npy(Dictionary("<f4", "(1+1,)"), two), "not read"},
      {"NegativeSize", Npy(Dictionary("<f4", "(-2,)"), two), "not read"},
      {"SizeBeyondInt64", Npy(Dictionary("<f4", "(9223372036854775808,)"), two), "not read"},
      {"ShapeThatOverflows", Npy(Dictionary("<f4", "(4294967296, 4294967296)"), two), "8 bytes"},
      {"BytesThatOverflow", Npy(Dictionary("<f8", "(2305843009213693952,)"), ""), "0 bytes"},
      {"FewerBytes", Npy(Dictionary("<f4", "(3,)"), two), "found 8 bytes"},
      {"MoreBytes", Npy(Dictionary("<f4", "(1,)"), two), "found 8 bytes"},
      {"Objects", Npy(Dictionary("|O", "(1,)"), two), "stored as a pickle"},
      {"Complex", Npy(Dictionary("<c8", "(1,)"), two), "the type \"<c8\""},
      {"Void", Npy(Dictionary("|V2", "(4,)"), two), "the type \"|V2\""},
      {"NoOrder", Npy(Dictionary("f4", "(2,)"), two), "the type \"f4\""},
      {"NoType", Npy(Dictionary("", "(2,)"), two), "the type \"\""},
      {"Structured", Npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", two),
       "structured arrays are not supported"},
      {"Strings", Npy(Dictionary("|S4", "(2,)"), two), "an array of strings"},
      {"StringWidthThatOverflows", Npy(Dictionary("<U99999999999999999999", "()"), two),
       "the type"},
      {"StringWithoutWidth", Npy(Dictionary("<U", "()"), two), "the type"},
      {"StringBeyondUnicode", Npy(Dictionary("<U2", "()"), std::string(8, '\x7f')), "not Unicode"},
      {"BytesBeyondAscii", Npy(Dictionary("|S2", "()"), "\xc3\xa9"), "not Unicode"},
      {"AnotherFormat", "GGUF", "neither a zip archive nor a NumPy array"},
      {"NothingAtAll", "", "neither a zip archive nor a NumPy array"},
  };
  for (const auto& attack : attacks) {
    SCOPED_TRACE(attack.name);
    const auto file = Parse(attack.file);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().kind, ErrorKind::kFormat);
    EXPECT_THAT(file.error().Message(), HasSubstr(attack.message));
  }
  EXPECT_EQ(Parse(Npy(Dictionary("<U0", "()"), ""))->strings().at("evil"), "");
}

TEST(Npz, RefusesEveryBadArchive) {
  ASSERT_TRUE(Parse(Zip({{}})));
  ASSERT_TRUE(Parse(Zip({{.method = 8}})));
  const Member deflated = {.method = 8};
  const std::string bomb_data = Npy(Dictionary("|u1", "(1000000,)"), std::string(1'000'000, '\0'));
  const struct {
    const char* name;
    std::string file;
    const char* message;
  } attacks[] = {
      {"NoDirectory", "PK\3\4 and nothing else that a zip has", "no directory at the end"},
      {"BytesBehindTheEnd", Zip({{}}) + "x", "no directory at the end"},
      {"MoreEntriesThanMembers", Zip({{}}, "", 1), "a directory cut short"},
      {"FewerEntriesThanMembers", Zip({{}, {.name = "y.npy"}}, "", 0xffff), "more directory"},
      {"Encrypted", Zip({{.flags = 1}}), "encrypted"},
      {"UnknownPacking", Zip({{.method = 12}}), "packing method 12"},
      {"NameTwice", Zip({{}, {}}), "two members \"x.npy\""},
      {"NameNotUtf8", Zip({{.name = "\xff.npy"}}), "not UTF-8"},
      {"AnotherNameInside", Zip({{.local_name = "y.npy"}}), "another name or packing"},
      {"NotAnArray", Zip({{.name = "readme.txt"}}), "members that end in .npy"},
      {"WrongCrc", Zip({{.crc = 1}}), "CRC-32"},
      {"WrongCrcDeflated", Zip({{.method = 8, .crc = 1}}), "CRC-32"},
      {"StoredSizesThatDiffer", Zip({{.size = 5}}), "stored bytes of 5"},
      {"BytesBeyondTheFile", Zip({{.size = 1 << 20, .packed_size = 1 << 20}}), "beyond the file"},
      {"NoHeaderWhereItPoints", Zip({{.offset = 1}}), "no header where"},
      {"OffsetBeyondTheFile", Zip({{.offset = 0xfffffff0}}), "no header where"},
      {"OffsetOfAnotherMember", Zip({{}, {.name = "y.npy", .local_name = "x.npy", .offset = 0}}),
       "another name"},
      {"Zip64WithoutItsField", Zip({{.size = 0xffffffff, .packed_size = 0xffffffff}}), "zip64"},
      {"Zip64FieldTooShort",
       Zip({{.size = 0xffffffff,
             .packed_size = 0xffffffff,
             .extra = Raw(uint16_t{1}) + Raw(uint16_t{8}) + Raw(uint64_t{1})}}),
       "zip64"},
      {"ExtraThatLeavesItsEntry",
       Zip({{.size = 0xffffffff, .extra = Raw(uint16_t{1}) + Raw(uint16_t{0xffff})}}), "zip64"},
      {"SizeThatDeflateCannotReach", Zip({{.method = 8, .size = 1 << 30}}), "deflate can reach"},
      {"SizeBelowTheStream", Zip({{.data = bomb_data, .method = 8, .size = 100}}),
       "of another size"},
      {"SizeAboveTheStream", Zip({{.method = 8, .size = 1000}}), "of another size"},
      {"DamagedStream", Zip({{.method = 8, .packed = "\xff\xff\xff\xff", .size = 90}}), "damaged"},
      {"StreamCutShort",
       Zip({{.method = 8, .packed = deflated.packed.substr(0, deflated.packed.size() - 3)}}),
       "damaged"},
      {"BytesBehindTheStream", Zip({{.method = 8, .packed = deflated.packed + "x"}}), "damaged"},
      {"EmptyStream", Zip({{.method = 8, .packed = "", .size = 0}}), "damaged"},
      {"MemberThatIsNoArray", Zip({{.data = "hello, this is text"}}), "no .npy header"},
      {"TorchArchive", Zip({{.name = "model/data.pkl", .data = "\x80\x02}q\0."}}),
       "safetensors.torch.save_file"},
  };
  for (const auto& attack : attacks) {
    SCOPED_TRACE(attack.name);
    const auto file = Parse(attack.file);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().kind, ErrorKind::kFormat);
    EXPECT_THAT(file.error().Message(), HasSubstr(attack.message));
  }
}

// One packed kilobyte under many names would unpack to any size.
TEST(Npz, MembersThatShareBytesAreRefused) {
  Member inner = {.name = "y.npy"};
  const std::string inner_zip = "PK\3\4" + Raw(uint16_t{20}) + std::string(8, '\0') +
                                Raw(inner.crc) + Raw(inner.packed_size) + Raw(inner.size) +
                                Raw(uint16_t{5}) + Raw(uint16_t{0}) + "y.npy" + inner.data;
  // The first member's data holds the second member whole; its own data starts 35 bytes in.
  const Member outer = {.data = inner_zip};
  std::string zip = Zip({outer, {.name = "y.npy", .offset = 35}});
  EXPECT_THAT(Parse(zip).error().Message(), HasSubstr("overlap"));
}

TEST(Npz, EveryPrefixAndEveryFlippedByteIsAnswered) {
  const std::string zip = Zip({{}, {.name = "y.npy", .method = 8}});
  ASSERT_TRUE(Parse(zip));
  for (size_t size = 0; size < zip.size(); ++size) EXPECT_FALSE(Parse(zip.substr(0, size)));
  for (size_t at = 0; at < zip.size(); ++at) {
    std::string flipped = zip;
    flipped[at] = static_cast<char>(~flipped[at]);
    const auto file = Parse(flipped);
    if (file) {
      EXPECT_EQ(file->tensors().size(), 2u);
    }
  }
}

TEST(TensorFile, GivesBothFormatsOneFace) {
  const TemporaryFolder folder;
  const float eps = 1e-5f, x[] = {1, 2};
  const int32_t heads = 4;
  const std::vector<TensorToWrite> tensors = {{"x", DType::kF32, {1, 2}, x, {}},
                                              {"norm_eps", DType::kF32, {}, &eps, {}},
                                              {"n_head", DType::kI32, {}, &heads, {}}};
  ASSERT_TRUE(WriteSafetensors(folder / "named.other", tensors,
                               {{"position", "rope"}, {"n_head", "6"}}, false));
  const auto safetensors = TensorFile::Open(folder / "named.other");
  ASSERT_TRUE(safetensors) << safetensors.error().Message();
  EXPECT_THAT(*safetensors->Doubles("x"), ElementsAre(1, 2));
  EXPECT_EQ(safetensors->settings().at("position"), "rope");
  EXPECT_EQ(safetensors->settings().at("norm_eps"), "1e-05");
  EXPECT_EQ(safetensors->settings().at("n_head"), "6");

  const auto npz = TensorFile::Open(HEED_GOLDEN_DIR "/numpy-deflated.npz");
  ASSERT_TRUE(npz) << npz.error().Message();
  EXPECT_EQ(npz->settings().at("n_head"), "4");
  EXPECT_EQ(npz->settings().at("rope_theta"), "10000");
  EXPECT_EQ(npz->settings().at("norm_eps"), "1e-05");
  EXPECT_EQ(npz->settings().at("bias"), "true");
  EXPECT_EQ(npz->settings().at("position"), "rope");
  EXPECT_FALSE(npz->settings().contains("i1"));
  EXPECT_THAT(*npz->Integers("n_head"), ElementsAre(4));
  EXPECT_NE(npz->Find("fortran"), nullptr);
}

TEST(TensorFile, TellsFormatsApartByTheirBytes) {
  const auto message = [](const std::string& bytes, const std::string& where) {
    const auto file = TensorFile::Parse(std::as_bytes(std::span(bytes)), where);
    return file ? "" : file.error().Message();
  };
  const std::string advice = "safetensors.torch.save_file";
  // The first bytes of torch.save's old format, of pickle.dump's, and of torch.save's zip.
  EXPECT_THAT(message(std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20", 10), "a.pt"),
              HasSubstr(advice));
  EXPECT_THAT(message("\x80\x04\x95 and so on", "model.safetensors"), HasSubstr(advice));
  EXPECT_THAT(message(Zip({{.name = "t/data.pkl"}}), "a.npz"), HasSubstr(advice));
  EXPECT_THAT(message("hello", "a.txt"), HasSubstr("a file of another format"));
  EXPECT_THAT(message("", "a.safetensors"), HasSubstr("found 0 bytes"));
  // A header of 0x0280 bytes begins like a pickle.
  std::string header = "{}";
  header.resize(0x280, ' ');
  EXPECT_EQ(message(Raw(uint64_t{0x280}) + header, "a"), "");
}

}  // namespace
}  // namespace heed
