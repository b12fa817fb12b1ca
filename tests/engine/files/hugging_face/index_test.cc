// An index comes from strangers: every file that it names must lie beside it.
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/hugging_face/tensor_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string IndexRefusal(absl::string_view text) {
  const absl::Status status = ParseSafetensorsIndex(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 200);
  EXPECT_LT(status.message().size(), 800);
  return std::string(status.message());
}

std::string Map(absl::string_view file) { return absl::StrCat(R"({"weight_map":{"t":")", file, R"("}})"); }

TEST(SafetensorsIndexTest, ReadsWhatTransformersWrites) {
  const SafetensorsIndex index = ParseSafetensorsIndex(R"({
    "metadata": {"total_parameters": 3, "total_size": 12},
    "weight_map": {"b": "model-00002-of-00002.safetensors", "a": "model-00001-of-00002.safetensors"}})")
                                     .value();
  EXPECT_THAT(index.files, ElementsAre(Pair("a", "model-00001-of-00002.safetensors"),
                                       Pair("b", "model-00002-of-00002.safetensors")));
  EXPECT_TRUE(ParseSafetensorsIndex(R"({"weight_map":{}})").ok());
}

TEST(SafetensorsIndexTest, RefusesFileNamesThatLeadElsewhere) {
  for (const absl::string_view name :
       {"/etc/x.safetensors", "../x.safetensors", "a/../../x.safetensors", "a/x.safetensors", "./x.safetensors", "..",
        ".", "", ".safetensors", ".x.safetensors", "a\\\\x.safetensors", "x.safetensors\\u0000", "\\u0000.safetensors",
        "x\\n.safetensors", "x.bin", "x.safetensors/", "\\u007f.safetensors"}) {
    EXPECT_THAT(IndexRefusal(Map(name)), HasSubstr("weight_map of \"t\": the file name")) << name;
  }
  EXPECT_THAT(IndexRefusal(Map(absl::StrCat(std::string(300, 'x'), ".safetensors"))), HasSubstr("too long"));
}

TEST(SafetensorsIndexTest, RefusesWhatIsNoIndex) {
  for (const absl::string_view text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":null})", R"({"weight_map":{"t":1}})",
        R"({"weight_map":{"t":null}})", R"({"weight_map":{"t":["x.safetensors"]}})", R"({"weight_map":{"t":{}}})"}) {
    IndexRefusal(text);
  }
  EXPECT_THAT(IndexRefusal(R"({"weight_map":{"t":"a.safetensors","t":"b.safetensors"}})"),
              HasSubstr("\"t\" occurs twice"));
  EXPECT_THAT(IndexRefusal(R"({"weight_map":{},"weight_map":{}})"), HasSubstr("\"weight_map\" occurs twice"));
  EXPECT_THAT(IndexRefusal(absl::StrCat(R"({"metadata":)", std::string(50000, '['))), HasSubstr("nests deeper"));
  EXPECT_THAT(IndexRefusal(std::string(kMaxSafetensorsIndexBytes + 1, ' ')), HasSubstr("at most"));
  EXPECT_THAT(IndexRefusal("{\"weight_map\":{\"\xff\":\"a.safetensors\"}}"), HasSubstr("not JSON"));
}

// A value of two bytes in the text takes fifty in memory. Parsing 64 MiB of them once took gigabytes.
TEST(SafetensorsIndexTest, RefusesMoreValuesThanTensorsThereAre) {
  for (const absl::string_view value : {"[],", "{},", "0,"}) {
    std::string text = R"({"weight_map":{},"metadata":[)";
    for (int i = 0; i < kMaxJsonValues; ++i) absl::StrAppend(&text, value);
    EXPECT_THAT(IndexRefusal(text + "0]}"), HasSubstr("it has more than 1048576 values"));
  }
}

TEST(SafetensorsIndexTest, ManyTensorsTakeNoTimeSquared) {
  std::string text = R"({"weight_map":{)";
  for (int i = 0; i < 200000; ++i) absl::StrAppend(&text, i == 0 ? "" : ",", "\"t", i, "\":\"m.safetensors\"");
  EXPECT_EQ(ParseSafetensorsIndex(text + "}}").value().files.size(), 200000);
}

}  // namespace
}  // namespace shale
