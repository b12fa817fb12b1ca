// Tests what a reader must refuse, since files come from strangers.
#include <cstring>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/files/checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string SafetensorsRefusal(absl::string_view json, int64_t data_bytes) {
  const absl::Status status = ParseSafetensorsHeader(json, data_bytes).status();
  EXPECT_FALSE(status.ok()) << json.substr(0, 200);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_LT(status.message().size(), 400);
  return std::string(status.message());
}

// Returns a header with one tensor "t".
std::string One(absl::string_view dtype, absl::string_view shape, absl::string_view offsets) {
  return absl::StrCat(R"({"t":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, "}}");
}

TEST(SafetensorsHeaderTest, AcceptsWhatTheFormatAllows) {
  EXPECT_TRUE(ParseSafetensorsHeader("{}", 0).ok());
  EXPECT_TRUE(ParseSafetensorsHeader("{}      ", 0).ok());
  EXPECT_TRUE(ParseSafetensorsHeader("{ \n \"t\" : {\"data_offsets\":[0,4],\"shape\":[],\"dtype\":\"F32\"}}", 4).ok());
  EXPECT_TRUE(ParseSafetensorsHeader(One("F32", "[2,0,3]", "[0,0]"), 0).ok());
  EXPECT_TRUE(ParseSafetensorsHeader(One("F6_E2M3", "[4]", "[0,3]"), 3).ok());
  EXPECT_TRUE(
      ParseSafetensorsHeader(R"({"__metadata__":{},"\u00fc\"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1)
          .ok());
}

// Regression: both were refused, and the library of safetensors reads them. It refuses a byte order mark and a zero.
TEST(SafetensorsHeaderTest, AcceptsWhiteSpaceAndNoMetadataAsTheLibraryDoes) {
  const std::string t = R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  for (const std::string& json :
       {absl::StrCat(R"({"__metadata__":null,)", t, "}"), absl::StrCat("{", t, R"(,"__metadata__":null})"),
        absl::StrCat(" \n\t{", t, "}\r\n")}) {
    const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, 1);
    ASSERT_TRUE(header.ok()) << json << header.status();
    EXPECT_EQ(header->tensors.size(), 1);
    EXPECT_TRUE(header->metadata.empty());
  }
  SafetensorsRefusal(absl::StrCat("\xEF\xBB\xBF{", t, "}"), 1);
  SafetensorsRefusal(absl::StrCat("{", t, "}", std::string(1, '\0')), 1);
  SafetensorsRefusal("   ", 0);
  EXPECT_THAT(SafetensorsRefusal(R"({"__metadata__":{"a":null}})", 0), HasSubstr("__metadata__ of \"a\" is null"));
  EXPECT_THAT(SafetensorsRefusal(R"({"__metadata__":null,"__metadata__":{}})", 0), HasSubstr("occurs twice"));
}

TEST(SafetensorsHeaderTest, SortsTensorsAsTheyLie) {
  const SafetensorsHeader header = ParseSafetensorsHeader(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
                                                          R"("c":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
                                                          R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                                                          3)
                                       .value();
  ASSERT_EQ(header.tensors.size(), 3);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "c");
  EXPECT_EQ(header.tensors[2].name, "b");
}

// An entry of ten bytes in the file takes ten times as many in memory.
TEST(SafetensorsHeaderTest, RefusesMoreThanFilesHave) {
  std::string json = R"({"__metadata__":{"":"")";
  for (int i = 0; i < kMaxSafetensorsMetadata; ++i) absl::StrAppend(&json, ",\"", i, "\":\"\"");
  EXPECT_THAT(SafetensorsRefusal(json + "}}", 0), HasSubstr("__metadata__ has more than 65536 entries"));
  json = "{";
  for (int i = 0; i < kMaxSafetensorsTensors; ++i) {
    absl::StrAppend(&json, "\"", i, R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)");
  }
  EXPECT_THAT(SafetensorsRefusal(json + R"("more":{}})", 0), HasSubstr("there are more than 262144 tensors"));
}

TEST(SafetensorsHeaderTest, RefusesWhatIsNoObject) {
  for (const absl::string_view json : {"", " ", "[]", "1", "null", "\"x\"", "\xEF\xBB\xBF{}", "{", "}"}) {
    EXPECT_THAT(SafetensorsRefusal(json, 0), HasSubstr("not a JSON object")) << json;
  }
  EXPECT_THAT(SafetensorsRefusal(absl::string_view("{}\0", 3), 0), HasSubstr("not a JSON object"));
}

TEST(SafetensorsHeaderTest, RefusesWhatIsNoJson) {
  EXPECT_THAT(SafetensorsRefusal("{}{}", 0), HasSubstr("not JSON at its byte 3"));
  EXPECT_THAT(SafetensorsRefusal("{} {}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal("{\"a\":}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal("{'a':{}}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal("{,}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[01]", "[0,1]"), 1), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[1,]", "[0,1]"), 1), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[NaN]", "[0,1]"), 1), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "/* */[1]", "[0,1]"), 1), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal(std::string("{\"a\0\":{}}", 9), 0), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal(std::string("{}\0{}", 5), 0), HasSubstr("not JSON at its byte 3"));
}

TEST(SafetensorsHeaderTest, RefusesWhatIsNotUtf8) {
  EXPECT_THAT(SafetensorsRefusal("{\"\xFF\":{}}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal("{\"\xED\xA0\x80\":{}}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal(R"({"\ud800":{}})", 0), HasSubstr("not JSON"));
}

TEST(SafetensorsHeaderTest, RefusesDuplicates) {
  const std::string t = R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(SafetensorsRefusal(absl::StrCat("{", t, ",", t, "}"), 1), HasSubstr("\"t\" occurs twice"));
  // The same name, written with an escape.
  EXPECT_THAT(
      SafetensorsRefusal(absl::StrCat("{", t, R"(,"\u0074":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})"), 2),
      HasSubstr("\"t\" occurs twice"));
  EXPECT_THAT(SafetensorsRefusal(R"({"__metadata__":{},"__metadata__":{}})", 0),
              HasSubstr("\"__metadata__\" occurs twice"));
  EXPECT_THAT(SafetensorsRefusal(R"({"__metadata__":{"a":"1","a":"2"}})", 0),
              HasSubstr("\"a\" occurs twice in __metadata__"));
  EXPECT_THAT(SafetensorsRefusal(R"({"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("tensor \"t\": dtype occurs twice"));
}

TEST(SafetensorsHeaderTest, RefusesOtherMembers) {
  EXPECT_THAT(SafetensorsRefusal(R"({"t":{"dtype":"U8","shape":[1]}})", 1),
              HasSubstr("dtype, shape or data_offsets is missing"));
  EXPECT_THAT(SafetensorsRefusal(R"({"t":{}})", 1), HasSubstr("tensor \"t\": dtype, shape or data_offsets is missing"));
  EXPECT_THAT(SafetensorsRefusal(R"({"t":{"dtype":"U8","stride":[1]}})", 1), HasSubstr("unknown member \"stride\""));
  EXPECT_THAT(SafetensorsRefusal(R"({"t":[]})", 1), HasSubstr("\"t\" is a list, not an object"));
  EXPECT_THAT(SafetensorsRefusal(R"({"t":null})", 1), HasSubstr("\"t\" is null, not an object"));
  EXPECT_THAT(SafetensorsRefusal(R"({"t":{"dtype":1,"shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("dtype is a number"));
  EXPECT_THAT(SafetensorsRefusal(R"({"t":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("dtype is a list"));
  EXPECT_THAT(SafetensorsRefusal(R"({"t":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1),
              HasSubstr("shape is a number"));
  EXPECT_THAT(SafetensorsRefusal(R"({"t":{"dtype":"U8","shape":{},"data_offsets":[0,1]}})", 1),
              HasSubstr("shape is an object"));
  EXPECT_THAT(SafetensorsRefusal(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__ of \"a\" is a number"));
  EXPECT_THAT(SafetensorsRefusal(R"({"__metadata__":{"a":{}}})", 0),
              HasSubstr("is an object; it maps strings to strings"));
  EXPECT_THAT(SafetensorsRefusal(R"({"__metadata__":"a"})", 0), HasSubstr("is a string, not an object"));
}

TEST(SafetensorsHeaderTest, RefusesOtherNumbers) {
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[-1]", "[0,1]"), 1), HasSubstr("shape holds a negative number"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[1.0]", "[0,1]"), 1),
              HasSubstr("shape holds a number that is not an integer"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[1e0]", "[0,1]"), 1), HasSubstr("not an integer"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[\"1\"]", "[0,1]"), 1), HasSubstr("shape holds a string"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[[1]]", "[0,1]"), 1), HasSubstr("shape holds a list"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[true]", "[0,1]"), 1), HasSubstr("shape holds true or false"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[9223372036854775808]", "[0,1]"), 1),
              HasSubstr("9223372036854775808 is too large"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[1e999]", "[0,1]"), 1), HasSubstr("not JSON"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[99999999999999999999]", "[0,1]"), 1), HasSubstr("not an integer"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[1]", "[1]"), 1), HasSubstr("data_offsets must be [begin, end]"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[1]", "[0,1,1]"), 1), HasSubstr("data_offsets must be [begin, end]"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[1]", "[0,-1]"), 1), HasSubstr("data_offsets holds a negative number"));
}

TEST(SafetensorsHeaderTest, RefusesUnknownDTypes) {
  EXPECT_THAT(SafetensorsRefusal(One("F33", "[1]", "[0,1]"), 1), HasSubstr("tensor \"t\": unknown dtype \"F33\""));
  EXPECT_THAT(SafetensorsRefusal(One("f32", "[1]", "[0,4]"), 4), HasSubstr("unknown dtype"));
}

TEST(SafetensorsHeaderTest, RefusesSizesThatDoNotAgree) {
  EXPECT_THAT(SafetensorsRefusal(One("F32", "[2,2]", "[0,12]"), 12),
              HasSubstr("has 12 bytes, but F32 [2, 2] takes 16"));
  EXPECT_THAT(SafetensorsRefusal(One("F32", "[]", "[0,0]"), 0), HasSubstr("takes 4"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[1]", "[1,0]"), 1), HasSubstr("ends at byte 0, before it begins at 1"));
  EXPECT_THAT(SafetensorsRefusal(One("F4", "[3]", "[0,2]"), 2),
              HasSubstr("takes 12 bits, which is not a whole number of bytes"));
  EXPECT_THAT(SafetensorsRefusal(One("F32", "[4294967296,4294967296]", "[0,0]"), 0),
              HasSubstr("more bytes than can be counted"));
  // 2^62 elements of 4 bytes wrap around to 0 bytes if the multiplication is not checked.
  EXPECT_THAT(SafetensorsRefusal(One("F32", "[4611686018427387904]", "[0,0]"), 0),
              HasSubstr("more bytes than can be counted"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[4294967296,4294967296,0]", "[0,0]"), 0),
              HasSubstr("more bytes than can be counted"));
}

TEST(SafetensorsHeaderTest, RefusesGapsAndOverlaps) {
  const auto two = [](absl::string_view first, absl::string_view second) {
    return absl::StrCat(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)", first,
                        R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)", second, "}}");
  };
  EXPECT_TRUE(ParseSafetensorsHeader(two("[0,2]", "[2,4]"), 4).ok());
  EXPECT_TRUE(ParseSafetensorsHeader(two("[2,4]", "[0,2]"), 4).ok());
  EXPECT_THAT(SafetensorsRefusal(two("[1,3]", "[3,5]"), 5),
              HasSubstr("\"a\": begins at byte 1, but the tensor before it ends at 0"));
  EXPECT_THAT(SafetensorsRefusal(two("[0,2]", "[3,5]"), 5), HasSubstr("\"b\": begins at byte 3"));
  EXPECT_THAT(SafetensorsRefusal(two("[0,2]", "[1,3]"), 3), HasSubstr("\"b\": begins at byte 1"));
  EXPECT_THAT(SafetensorsRefusal(two("[0,2]", "[0,2]"), 2), HasSubstr("\"b\": begins at byte 0"));
  EXPECT_THAT(SafetensorsRefusal(two("[0,2]", "[2,4]"), 3), HasSubstr("end at byte 4 of the data, but there are 3"));
  EXPECT_THAT(SafetensorsRefusal(two("[0,2]", "[2,4]"), 5), HasSubstr("end at byte 4 of the data, but there are 5"));
  EXPECT_THAT(SafetensorsRefusal("{}", 1), HasSubstr("end at byte 0 of the data, but there are 1"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[9223372036854775807]", "[0,9223372036854775807]"), 1),
              HasSubstr("can be counted"));
}

TEST(SafetensorsHeaderTest, SurvivesDepthAndWidth) {
  const size_t size = 1 << 20;
  EXPECT_THAT(SafetensorsRefusal(absl::StrCat("{\"a\":", std::string(size, '['), "}"), 0),
              HasSubstr("\"a\" is a list"));
  std::string objects = "{";
  for (int i = 0; i < 100000; ++i) objects += "\"a\":{";
  EXPECT_THAT(SafetensorsRefusal(objects + "}", 0), HasSubstr("unknown member \"a\""));
  EXPECT_THAT(SafetensorsRefusal(absl::StrCat("{\"", std::string(size, 'n'), "\":1}"), 0),
              HasSubstr("nnn\"... is a number"));
  std::string ones = "1";
  for (int i = 0; i < 100000; ++i) ones += ",1";
  EXPECT_THAT(SafetensorsRefusal(One("U8", absl::StrCat("[", ones, "]"), "[0,1]"), 1),
              HasSubstr("more than 64 dimensions"));
  EXPECT_THAT(SafetensorsRefusal(One("U8", "[1]", absl::StrCat("[", ones, "]")), 1), HasSubstr("must be [begin, end]"));
}

// Whatever bytes are changed, the parser returns a header or a refusal.
TEST(SafetensorsHeaderTest, SurvivesMutations) {
  const std::string good = R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                           R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})";
  ASSERT_TRUE(ParseSafetensorsHeader(good, 26).ok());
  std::mt19937 random(1);
  const std::string alphabet = "{}[],:\"\\0129-.eE tfnaub_\x80\xFF";
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    for (int n = random() % 4; n >= 0; --n) {
      const size_t at = random() % bad.size();
      switch (random() % 3) {
        case 0: bad[at] = alphabet[random() % alphabet.size()]; break;
        case 1: bad.erase(at, 1 + random() % 8); break;
        case 2: bad.insert(at, bad.substr(random() % bad.size(), random() % 16)); break;
      }
      if (bad.empty()) bad = "{";
    }
    const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(bad, 26);
    if (!header.ok()) {
      EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    int64_t bytes = 0;
    for (const SafetensorsTensor& tensor : header->tensors) bytes += tensor.size_bytes();
    EXPECT_EQ(bytes, 26) << bad;
  }
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  std::string SafetensorsRefusal(uint64_t length, absl::string_view rest) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    const std::string path = folder_.Write("a.safetensors", absl::StrCat(bytes, rest));
    const absl::Status status = SafetensorsReader::Open(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(path + " is not a valid safetensors file: "));
    return std::string(status.message());
  }

  TempFolder folder_;
};

TEST_F(SafetensorsFileTest, RefusesLengthsThatAreNone) {
  EXPECT_THAT(SafetensorsRefusal(100, "{}"), HasSubstr("its header claims 100 bytes, but only 2 follow"));
  EXPECT_THAT(SafetensorsRefusal(100'000'001, "{}"),
              HasSubstr("claims 100000001 bytes; at most 100000000 are allowed"));
  EXPECT_THAT(SafetensorsRefusal(~uint64_t{0}, "{}"), HasSubstr("claims 18446744073709551615 bytes"));
  EXPECT_THAT(SafetensorsRefusal(~uint64_t{0} - 7, "{}"), HasSubstr("at most"));
  EXPECT_THAT(SafetensorsRefusal(0, ""), HasSubstr("not a JSON object"));
  EXPECT_THAT(SafetensorsRefusal(2, "{}x"), HasSubstr("end at byte 0 of the data, but there are 1"));
}

TEST_F(SafetensorsFileTest, RefusesShortFiles) {
  for (const absl::string_view bytes : {"", "\2\0\0\0\0\0\0"}) {
    const absl::Status status = SafetensorsReader::Open(folder_.Write("a", bytes)).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("too few for the length of a header"));
  }
  EXPECT_EQ(SafetensorsReader::Open(folder_.Path("none")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SafetensorsFileTest, RefusesAFileCutShortOrGrown) {
  const std::string path = folder_.Path("a.safetensors");
  auto writer = SafetensorsWriter::Create(path, {{"a", SafetensorsDType::kF32, {2}}}, {}).value();
  ASSERT_TRUE(writer->AppendFloat32("a", {1, 2}).ok());
  ASSERT_TRUE(writer->Finish().ok());
  const std::string bytes = ReadFile(path, 1000).value();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(SafetensorsReader::Open(folder_.Write("b", bytes.substr(0, size))).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(SafetensorsReader::Open(folder_.Write("b", bytes + "x")).ok());
  EXPECT_TRUE(SafetensorsReader::Open(folder_.Write("b", bytes)).ok());
}

}  // namespace
}  // namespace shale
