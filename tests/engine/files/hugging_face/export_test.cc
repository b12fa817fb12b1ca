// An exported folder appears whole or not at all, and reads back bit for bit.
#include "engine/api/export.h"

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/layout.h"
#include "engine/files/hugging_face/tensor_files.h"
#include "engine/files/hugging_face/weights.h"
#include "engine/files/io/file.h"
#include "engine/files/io/folder_lock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/files/hugging_face/models.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::set<std::string> FilesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

// Expects that every element of every parameter equals TestWeight.
void ExpectTestWeights(const std::string& folder, const DecoderConfig& config) {
  const absl::StatusOr<HfWeights> weights = HfWeights::Open(folder, config);
  ASSERT_TRUE(weights.ok()) << weights.status();
  for (const HfParameterShape& parameter : weights->parameters()) {
    int64_t elements = 1;
    for (const int64_t size : parameter.shape) elements *= size;
    std::vector<float> values(elements), wanted(elements);
    ASSERT_TRUE(weights->Read(parameter.name, 0, absl::MakeSpan(values)).ok());
    ASSERT_TRUE(ReadTestWeights(parameter.name, 0, absl::MakeSpan(wanted)).ok());
    EXPECT_TRUE(values == wanted) << parameter.name;
  }
}

TEST(HfExportTest, EveryFamilyGoesRoundToTheBit) {
  for (const NamedModel& model : HfModels()) {
    SCOPED_TRACE(model.name);
    const TempFolder folder;
    for (const int64_t max_file_bytes : {int64_t{5'000'000'000}, int64_t{3000}}) {
      const std::string out = folder.Path(absl::StrCat("m", max_file_bytes));
      const absl::Status status = ExportTestModel(model.config, out, {.max_file_bytes = max_file_bytes});
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(ReadHfConfig(out).value(), model.config);
      ExpectTestWeights(out, model.config);
      EXPECT_EQ(FilesIn(out).contains("model.safetensors.index.json"), max_file_bytes < 5'000'000'000);
    }
    EXPECT_EQ(folder.CountEntries(), 2);  // Nothing temporary stays.
  }
}

// Regression: a crafted checkpoint whose job had 65,536 layers took 20 s and 884 MB before it was refused.
TEST(HfExportTest, AModelWithMoreLayersThanTheCheckpointIsRefusedBeforeItTakesMemory) {
  for (const NamedModel& model : HfModels()) {
    SCOPED_TRACE(model.name);
    const int64_t parameters = std::ssize(MakeHfLayout(model.config)->parameters);
    EXPECT_TRUE(CheckLayers(model.config, parameters).ok());
    EXPECT_EQ(CheckLayers(model.config, parameters - 1).code(), absl::StatusCode::kFailedPrecondition);
    DecoderConfig large = model.config;
    large.layers = 65536;
    EXPECT_THAT(std::string(CheckLayers(large, parameters).message()),
                HasSubstr("the job describes a model of 65536 layers with "));
  }
}

TEST(HfExportTest, FilesAreCutWhereTheNextTensorDoesNotFit) {
  const TempFolder folder;
  const std::string out = folder.Path("m");
  ASSERT_TRUE(ExportTestModel(HfModel("llama"), out, {.max_file_bytes = 3000}).ok());
  const SafetensorsIndex index =
      ParseSafetensorsIndex(ReadFile(out + "/model.safetensors.index.json", 1 << 20).value()).value();
  std::map<std::string, int64_t> bytes;
  int64_t total = 0;
  for (const auto& [name, file] : index.files) {
    const SafetensorsReader reader = SafetensorsReader::Open(absl::StrCat(out, "/", file)).value();
    EXPECT_THAT(reader.metadata(), ElementsAre(std::pair<const std::string, std::string>("format", "pt")));
    ASSERT_NE(reader.Find(name), nullptr);
    bytes[file] += reader.Find(name)->size_bytes();
    total += reader.Find(name)->size_bytes();
  }
  for (const auto& [file, size] : bytes) EXPECT_LE(size, 3000) << file;
  EXPECT_THAT(ReadFile(out + "/model.safetensors.index.json", 1 << 20).value(),
              HasSubstr(absl::StrCat("\"total_size\": ", total)));
  EXPECT_EQ(bytes.begin()->first, absl::StrCat("model-00001-of-0000", bytes.size(), ".safetensors"));
}

TEST(HfExportTest, ATensorAboveTheLimitGetsAFileOfItsOwn) {
  const TempFolder folder;
  ASSERT_TRUE(ExportTestModel(HfModel("gpt2"), folder.Path("m"), {.max_file_bytes = 1}).ok());
  ExpectTestWeights(folder.Path("m"), HfModel("gpt2"));
  EXPECT_TRUE(fs::exists(folder.Path("m/model-00028-of-00028.safetensors")));
}

TEST(HfExportTest, EveryElementIsAskedForOnceInBoundedRanges) {
  DecoderConfig config = HfModel("gpt2");
  config.hidden = 70001;  // More than one rectangle of the staging buffer.
  config.layers = 1;
  std::map<std::string, int64_t> asked;
  const TempFolder folder;
  const absl::Status status = ExportHf(
      config, {},
      [&](absl::string_view name, int64_t begin, absl::Span<float> values) {
        asked[std::string(name)] += values.size();
        EXPECT_LE(values.size() * sizeof(float), size_t{2} << 20);
        return ReadTestWeights(name, begin, values);
      },
      folder.Path("m"));
  ASSERT_TRUE(status.ok()) << status;
  const HfLayout layout = MakeHfLayout(config).value();
  for (const HfParameter& parameter : layout.parameters) {
    int64_t elements = 1;
    for (const int64_t size : parameter.shape) elements *= size;
    EXPECT_EQ(asked[parameter.name], elements) << parameter.name;
  }
}

TEST(HfExportTest, TokenizerFilesAreCopiedByteForByte) {
  const TempFolder folder;
  const std::string base = folder.Path("base"), out = folder.Path("new/deep/out/");
  const DecoderConfig config = HfModel("qwen2");
  ASSERT_TRUE(ExportTestModel(config, base).ok());
  const std::map<std::string, std::string> copied = {{"tokenizer.json", std::string("{\"a\":\r\n\0\xff}", 11)},
                                                     {"tokenizer.model", std::string(3'000'000, 'm')},
                                                     {"merges.txt", ""},
                                                     {"generation_config.json", "{}"},
                                                     {"chat_template.jinja", "{{ x }}"}};
  for (const auto& [name, bytes] : copied) folder.Write("base/" + name, bytes);
  for (const char* name : {"pytorch_model.bin", "modeling.py", ".hidden", "optimizer.pt", "training_args.json"}) {
    folder.Write(absl::StrCat("base/", name), "x");
  }
  const absl::Status status = ExportTestModel(config, out, {.base_folder = base});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(FilesIn(out),
            (std::set<std::string>{"chat_template.jinja", "config.json", "generation_config.json", "merges.txt",
                                   "model.safetensors", "tokenizer.json", "tokenizer.model"}));
  for (const auto& [name, bytes] : copied) EXPECT_TRUE(ReadFile(out + name, 1 << 24).value() == bytes) << name;
}

TEST(HfExportTest, ABaseMayHaveATokenizerAlone) {
  const TempFolder folder;
  fs::create_directory(folder.Path("base"));
  folder.Write("base/tokenizer.json", "x");
  const absl::Status status =
      ExportTestModel(HfModel("llama"), folder.Path("out"), {.base_folder = folder.Path("base"), .eos_token = 7});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(ReadFile(folder.Path("out/config.json"), 9999).value(), HasSubstr("\"eos_token_id\": 7,"));
  EXPECT_EQ(ReadFile(folder.Path("out/tokenizer.json"), 9).value(), "x");
  EXPECT_EQ(ReadHfConfig(folder.Path("out")).value(), HfModel("llama"));
}

// transformers went on behind the end of an answer, at which `generate --chat` stops.
TEST(HfExportTest, GenerationEndsWhereItEndsHere) {
  const TempFolder folder;
  fs::create_directory(folder.Path("base"));
  const DecoderConfig model = HfModel("llama");
  int exports = 0;
  const auto exported = [&](const std::vector<int32_t>& end_tokens) {
    const std::string out = folder.Path(absl::StrCat("out", ++exports));
    const HfExportOptions options = {.base_folder = folder.Path("base"), .eos_token = 7, .end_tokens = end_tokens};
    EXPECT_TRUE(ExportTestModel(model, out, options).ok());
    const absl::StatusOr<std::string> text = ReadFile(out + "/generation_config.json", 9999);
    return text.ok() ? nlohmann::json::parse(*text) : nlohmann::json();
  };
  using nlohmann::json;
  EXPECT_EQ(exported({7}), json()) << "config.json has it";
  EXPECT_EQ(exported({7, 9}), (json{{"eos_token_id", {7, 9}}}));
  folder.Write("base/generation_config.json", R"({"eos_token_id": 7, "top_k": 5})");
  EXPECT_EQ(exported({7}), (json{{"eos_token_id", 7}, {"top_k", 5}}));
  EXPECT_EQ(exported({9, 7}), (json{{"eos_token_id", {7, 9}}, {"top_k", 5}}));
  folder.Write("base/generation_config.json", R"({"eos_token_id": [3, 9]})");
  EXPECT_EQ(exported({9}), (json{{"eos_token_id", {3, 9}}}));
  folder.Write("base/generation_config.json", "{}");
  EXPECT_EQ(exported({9}), (json{{"eos_token_id", 9}}));
}

TEST(HfExportTest, AFileOfTheBaseThatLeadsElsewhereIsNotCopied) {
  const TempFolder folder;
  ASSERT_TRUE(ExportTestModel(HfModel("llama"), folder.Path("base")).ok());
  folder.Write("secret", "s");
  fs::create_symlink("../secret", folder.Path("base/tokenizer.json"));
  const absl::Status status =
      ExportTestModel(HfModel("llama"), folder.Path("out"), {.base_folder = folder.Path("base")});
  EXPECT_THAT(std::string(status.message()), HasSubstr("leads out of its folder"));
  EXPECT_EQ(FilesIn(folder.path()), (std::set<std::string>{"base", "secret"}));
}

TEST(HfExportTest, OnlyAnAbsentOrEmptyFolderIsTaken) {
  const TempFolder folder;
  folder.Write("file", "x");
  fs::create_directory(folder.Path("full"));
  folder.Write("full/a", "x");
  fs::create_directory(folder.Path("empty"));
  fs::create_directory_symlink("empty", folder.Path("link"));
  for (const char* name : {"file", "full", "link"}) {
    const absl::Status status = ExportTestModel(HfModel("llama"), folder.Path(name));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("/", name,
                                       name == std::string("full") ? " is not empty" : " exists and is not a folder")));
  }
  EXPECT_TRUE(ExportTestModel(HfModel("llama"), folder.Path("empty")).ok());
  EXPECT_FALSE(ExportTestModel(HfModel("llama"), "").ok());
  EXPECT_EQ(folder.CountEntries(), 4);
}

TEST(HfExportTest, AfterAnErrorThereIsNothing) {
  const TempFolder folder;
  for (int fail_at = 0; fail_at < 20; fail_at += 3) {
    int reads = 0;
    const absl::Status status = ExportHf(
        HfModel("gpt2"), {.max_file_bytes = 1000},
        [&](absl::string_view name, int64_t begin, absl::Span<float> values) {
          return reads++ == fail_at ? absl::DataLossError("the shard is torn") : ReadTestWeights(name, begin, values);
        },
        folder.Path("m"));
    EXPECT_EQ(status, absl::DataLossError("the shard is torn"));
    EXPECT_EQ(folder.CountEntries(), 0);
  }
  DecoderConfig odd = HfModel("llama");
  odd.linear_bias = true;
  EXPECT_EQ(ExportTestModel(odd, folder.Path("m")).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ExportTestModel(HfModel("llama"), folder.Path("m"), {.dtype = DType::kInt32}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ExportTestModel(HfModel("llama"), folder.Path("m"), {.max_file_bytes = 0}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(folder.CountEntries(), 0);
}

TEST(HfExportTest, WhatAKilledExportLeftIsRemovedByTheNext) {
  const TempFolder folder;
  fs::create_directory(folder.Path(".m.tmp-1-0"));
  folder.Write(".m.tmp-1-0/model.safetensors", "half");
  // A folder that is in use, a folder of another target and somebody's file stay.
  fs::create_directory(folder.Path(".m.tmp-2-0"));
  const absl::StatusOr<FolderLock> used = FolderLock::Take(folder.Path(".m.tmp-2-0"), "");
  ASSERT_TRUE(used.ok()) << used.status();
  fs::create_directory(folder.Path(".n.tmp-1-0"));
  folder.Write(".m.tmp-file", "x");
  ASSERT_TRUE(ExportTestModel(HfModel("llama"), folder.Path("m")).ok());
  EXPECT_THAT(*ListFolder(folder.Path("")), ::testing::ElementsAre(".m.tmp-2-0", ".m.tmp-file", ".n.tmp-1-0", "m"));
}

TEST(HfExportTest, WhatF16CannotHoldIsRefused) {
  const TempFolder folder;
  const absl::Status status = ExportHf(
      HfModel("llama"), {.dtype = DType::kFloat16},
      [](absl::string_view, int64_t, absl::Span<float> values) {
        for (float& value : values) value = 70000;
        return absl::OkStatus();
      },
      folder.Path("m"));
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.embed_tokens.weight holds 70000, which F16 cannot hold"));
}

// Every F16 number reads back unchanged, and the midpoint between two of them rounds to the even one.
TEST(SafetensorsF16Test, RoundsToNearestEven) {
  const TempFolder folder;
  std::vector<float> halves;
  for (int bits = 0; bits < 0x7C00; ++bits) {
    const int exponent = bits >> 10, fraction = bits & 0x3FF;
    halves.push_back(exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
  }
  std::vector<float> values, wanted;
  for (size_t i = 0; i < halves.size(); ++i) {
    for (const float sign : {1.0f, -1.0f}) {
      values.push_back(sign * halves[i]);
      wanted.push_back(sign * halves[i]);
      if (i + 1 == halves.size()) continue;
      const float middle = (halves[i] + halves[i + 1]) / 2;
      const float even = i % 2 == 0 ? halves[i] : halves[i + 1];
      const float below = std::nextafter(middle, 0.0f), above = std::nextafter(middle, 1e9f);
      values.insert(values.end(), {sign * middle, sign * below, sign * above});
      wanted.insert(wanted.end(), {sign * even, sign * halves[i], sign * halves[i + 1]});
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  values.insert(values.end(), {infinity, -infinity, 65519.996f});
  wanted.insert(wanted.end(), {infinity, -infinity, 65504});
  const int64_t count = values.size();
  values.push_back(std::nanf(""));
  const std::string path = folder.Path("h.safetensors");
  auto writer = SafetensorsWriter::Create(path, {{"h", SafetensorsDType::kF16, {count + 1}}}, {}).value();
  ASSERT_TRUE(writer->AppendFloat32("h", values).ok());
  ASSERT_TRUE(writer->Finish().ok());
  const SafetensorsReader reader = SafetensorsReader::Open(path).value();
  std::vector<float> read(count + 1);
  ASSERT_TRUE(reader.ReadFloat32(*reader.Find("h"), 0, absl::MakeSpan(read)).ok());
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(read[i]), std::bit_cast<uint32_t>(wanted[i])) << values[i];
  }
  EXPECT_TRUE(std::isnan(read[count]));
}

}  // namespace
}  // namespace shale::testing
