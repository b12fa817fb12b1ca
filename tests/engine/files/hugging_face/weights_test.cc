// Opening a folder finds the weights that its config describes, or lists everything that is wrong with it.
#include "engine/files/hugging_face/weights.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/compile/model/model.h"
#include "engine/files/checkpoint/safetensors.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/hugging_face/models.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Stored {
  SafetensorsDType dtype = SafetensorsDType::kF32;
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Stored>;

// Returns the tensors that the exporter writes for a model.
Tensors TensorsOf(const DecoderConfig& config) {
  const TempFolder folder;
  EXPECT_TRUE(ExportTestModel(config, folder.Path("m")).ok());
  const SafetensorsReader reader = SafetensorsReader::Open(folder.Path("m/model.safetensors")).value();
  Tensors tensors;
  for (const SafetensorsTensor& tensor : reader.tensors()) {
    Stored& stored = tensors[tensor.name];
    stored.shape = tensor.shape;
    stored.values.resize(tensor.elements());
    EXPECT_TRUE(reader.ReadFloat32(tensor, 0, absl::MakeSpan(stored.values)).ok());
  }
  return tensors;
}

void WriteFile(const std::string& path, const Tensors& tensors) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, stored] : tensors) entries.push_back({name, stored.dtype, stored.shape});
  auto writer = SafetensorsWriter::Create(path, entries, {{"format", "pt"}}).value();
  for (const auto& [name, stored] : tensors) {
    if (stored.dtype == SafetensorsDType::kI32) {
      ASSERT_TRUE(writer->Append(name, std::string(stored.values.size() * 4, '\0')).ok());
    } else {
      ASSERT_TRUE(writer->AppendFloat32(name, stored.values).ok());
    }
  }
  ASSERT_TRUE(writer->Finish().ok());
}

// Returns the message of opening the folder, or "" if it opens.
std::string Problems(const std::string& folder, const DecoderConfig& config) {
  const absl::Status status = HfWeights::Open(folder, config).status();
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}
std::string Problems(const Tensors& tensors, const DecoderConfig& config) {
  const TempFolder folder;
  WriteFile(folder.Path("model.safetensors"), tensors);
  return Problems(folder.path(), config);
}

void Rename(Tensors& tensors, const std::string& from, const std::string& to) {
  auto node = tensors.extract(from);
  ASSERT_FALSE(node.empty()) << from;
  node.key() = to;
  tensors.insert(std::move(node));
}

TEST(HfWeightsTest, ParametersAreThoseThatTheModelDeclares) {
  for (const NamedModel& model : HfModels()) {
    SCOPED_TRACE(model.name);
    const ModelGraph graph = BuildDecoder(model.config, {.sequence_length = 5}).value();
    const HfLayout layout = MakeHfLayout(model.config).value();
    ASSERT_EQ(layout.parameters.size(), graph.parameters.size());
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      EXPECT_EQ(layout.parameters[i].name, graph.parameters[i].name);
      EXPECT_EQ(layout.parameters[i].shape, graph.parameters[i].shape);
    }
  }
}

TEST(HfWeightsTest, RangesEqualWholeReads) {
  std::mt19937_64 random(5);
  for (const NamedModel& model : HfModels()) {
    SCOPED_TRACE(model.name);
    const TempFolder folder;
    ASSERT_TRUE(ExportTestModel(model.config, folder.Path("m")).ok());
    const HfWeights weights = HfWeights::Open(folder.Path("m"), model.config).value();
    for (const HfParameterShape& parameter : weights.parameters()) {
      int64_t elements = 1;
      for (const int64_t size : parameter.shape) elements *= size;
      const int64_t columns = parameter.shape.back();
      std::vector<std::pair<int64_t, int64_t>> ranges = {
          {0, elements}, {0, 0}, {elements, elements}, {0, 1}, {elements - 1, elements}};
      const auto clamp = [&](int64_t at) { return std::clamp<int64_t>(at, 0, elements); };
      for (const int64_t border : {columns, 2 * columns, elements / 3}) {
        ranges.push_back({clamp(border - 1), clamp(border + 1)});
        ranges.push_back({clamp(border), clamp(border + columns)});
        ranges.push_back({1, clamp(border + 2)});
      }
      for (int i = 0; i < 20; ++i) {
        const int64_t a = random() % (elements + 1), b = random() % (elements + 1);
        ranges.push_back({std::min(a, b), std::max(a, b)});
      }
      for (const auto& [begin, end] : ranges) {
        if (begin > end) continue;
        std::vector<float> values(end - begin, -7), wanted(end - begin);
        ASSERT_TRUE(ReadTestWeights(parameter.name, begin, absl::MakeSpan(wanted)).ok());
        const absl::Status status = weights.Read(parameter.name, begin, absl::MakeSpan(values));
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(values, wanted) << parameter.name << " " << begin << " to " << end;
      }
      std::vector<float> two(2);
      EXPECT_EQ(weights.Read(parameter.name, elements - 1, absl::MakeSpan(two)).code(), absl::StatusCode::kOutOfRange);
      EXPECT_EQ(weights.Read(parameter.name, -1, absl::MakeSpan(two)).code(), absl::StatusCode::kOutOfRange);
    }
    std::vector<float> one(1);
    EXPECT_EQ(weights.Read("head.bias", 0, absl::MakeSpan(one)).code(), absl::StatusCode::kNotFound);
  }
}

// One tensor has more rows, the other more columns than one rectangle of the staging buffer holds.
TEST(HfWeightsTest, TransposedTensorsAreReadRectangleByRectangle) {
  DecoderConfig config = HfModel("gpt2");
  config.layers = 1;
  config.hidden = 70001;
  const TempFolder folder;
  ASSERT_TRUE(ExportTestModel(config, folder.Path("m")).ok());
  const HfWeights weights = HfWeights::Open(folder.Path("m"), config).value();
  for (const std::string name : {"blocks.0.ffn.up.weight", "blocks.0.ffn.down.weight"}) {
    const int64_t elements = 70001 * config.width;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, elements}, {5, elements - 3}, {70003, 600001}}) {
      std::vector<float> values(end - begin), wanted(end - begin);
      ASSERT_TRUE(ReadTestWeights(name, begin, absl::MakeSpan(wanted)).ok());
      ASSERT_TRUE(weights.Read(name, begin, absl::MakeSpan(values)).ok());
      ASSERT_TRUE(values == wanted) << name << " " << begin;
    }
  }
}

TEST(HfWeightsTest, HalfPrecisionReadsAsWritten) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const char* name : {"llama", "gpt2", "falcon_40b"}) {
      const DecoderConfig config = HfModel(name);
      const TempFolder folder;
      ASSERT_TRUE(ExportTestModel(config, folder.Path("m"), {.dtype = dtype}).ok());
      const HfWeights weights = HfWeights::Open(folder.Path("m"), config).value();
      std::vector<float> values(30);
      ASSERT_TRUE(weights.Read("blocks.1.attention.qkv.weight", 7, absl::MakeSpan(values)).ok());
      for (size_t i = 0; i < values.size(); ++i) {
        const float wanted = TestWeight("blocks.1.attention.qkv.weight", 7 + i);
        // Half a unit in the last place: 11 bits of F16 (or its smallest step), 8 of BF16.
        const float bits = dtype == DType::kFloat16 ? 11 : 8;
        EXPECT_NEAR(values[i], wanted, std::max(std::fabs(wanted) * std::exp2(-bits), 0x1p-25f));
      }
    }
  }
}

TEST(HfWeightsTest, AnyThreadMayRead) {
  const DecoderConfig config = HfModel("gpt2");
  const TempFolder folder;
  ASSERT_TRUE(ExportTestModel(config, folder.Path("m")).ok());
  const HfWeights weights = HfWeights::Open(folder.Path("m"), config).value();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&weights, t] {
      for (int64_t i = 0; i < 50; ++i) {
        std::vector<float> values(40);
        ASSERT_TRUE(weights.Read("blocks.1.ffn.up.weight", t * 13 + i, absl::MakeSpan(values)).ok());
        for (int64_t k = 0; k < 40; ++k) ASSERT_EQ(values[k], TestWeight("blocks.1.ffn.up.weight", t * 13 + i + k));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HfWeightsTest, ListsEverythingThatIsWrong) {
  const DecoderConfig config = HfModel("llama");
  Tensors tensors = TensorsOf(config);
  tensors.erase("model.norm.weight");
  tensors.erase("lm_head.weight");
  tensors["model.layers.0.mlp.up_proj.bias"] = {SafetensorsDType::kF32, {2}, {1, 2}};
  tensors["model.layers.1.mlp.up_proj.weight"].shape = {config.width, config.hidden};
  tensors["model.layers.1.input_layernorm.weight"].dtype = SafetensorsDType::kI32;
  const std::string problems = Problems(tensors, config);
  EXPECT_THAT(problems, AllOf(HasSubstr("model.norm.weight: missing, wanted [12]"),
                              HasSubstr("lm_head.weight: missing, wanted [37, 12]"),
                              HasSubstr("model.layers.0.mlp.up_proj.bias: the model has no such tensor"),
                              HasSubstr("model.layers.1.mlp.up_proj.weight: found [12, 19], wanted [19, 12]"),
                              HasSubstr("model.layers.1.input_layernorm.weight: found dtype I32")));
  EXPECT_THAT(problems, Not(HasSubstr("more")));
  EXPECT_THAT(Problems(Tensors{{"x", {SafetensorsDType::kF32, {1}, {0}}}}, config),
              AllOf(HasSubstr("model.embed_tokens.weight: missing"), HasSubstr("\n  and 2 more")));
}

TEST(HfWeightsTest, MessagesStayReadable) {
  Tensors tensors = TensorsOf(HfModel("llama"));
  tensors["a\x1b[2Jb"] = tensors[std::string(100000, 'x')] = {SafetensorsDType::kF32, {1}, {1}};
  const std::string problems = Problems(tensors, HfModel("llama"));
  EXPECT_LT(problems.size(), 1000);
  EXPECT_THAT(problems, Not(HasSubstr("\x1b")));
}

TEST(HfWeightsTest, NamesMayLackThePrefix) {
  for (const char* name : {"llama", "gpt2", "falcon_7b"}) {
    const DecoderConfig config = HfModel(name);
    Tensors bare;
    for (const auto& [full, stored] : TensorsOf(config)) {
      const size_t dot = absl::StartsWith(full, "lm_head") ? 0 : full.find('.') + 1;
      bare[full.substr(dot)] = stored;
    }
    EXPECT_EQ(Problems(bare, config), "") << name;
  }
  Tensors twice = TensorsOf(HfModel("gpt2"));
  twice["wte.weight"] = twice["transformer.wte.weight"];
  EXPECT_THAT(Problems(twice, HfModel("gpt2")), HasSubstr("stored twice"));
}

TEST(HfWeightsTest, KnownBuffersArePassedOver) {
  const Stored buffer = {SafetensorsDType::kF32, {1}, {1}};
  Tensors gpt2 = TensorsOf(HfModel("gpt2"));
  gpt2["transformer.h.0.attn.bias"] = gpt2["transformer.h.1.attn.masked_bias"] = buffer;
  EXPECT_EQ(Problems(gpt2, HfModel("gpt2")), "");
  Tensors llama = TensorsOf(HfModel("llama"));
  llama["model.layers.1.self_attn.rotary_emb.inv_freq"] = llama["model.rotary_emb.inv_freq"] = buffer;
  EXPECT_EQ(Problems(llama, HfModel("llama")), "");
  llama["model.layers.x.self_attn.rotary_emb.inv_freq"] = buffer;
  EXPECT_THAT(Problems(llama, HfModel("llama")), HasSubstr("no such tensor"));
}

TEST(HfWeightsTest, ATiedHeadMayBeRepeatedButNotDiffer) {
  const DecoderConfig config = HfModel("qwen2");
  Tensors tensors = TensorsOf(config);
  ASSERT_FALSE(tensors.contains("lm_head.weight"));
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  EXPECT_EQ(Problems(tensors, config), "");
  tensors["lm_head.weight"].values.back() += 1;
  EXPECT_THAT(Problems(tensors, config), HasSubstr("lm_head.weight: differs from model.embed_tokens.weight"));
  tensors["lm_head.weight"].shape = {config.width, config.vocabulary};
  EXPECT_THAT(Problems(tensors, config), HasSubstr("lm_head.weight: found [12, 37], wanted [37, 12]"));
  // A head without an embedding beside it is read as the embedding.
  tensors = TensorsOf(config);
  Rename(tensors, "model.embed_tokens.weight", "lm_head.weight");
  EXPECT_EQ(Problems(tensors, config), "");
}

class HfIndexedFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [name, stored] : TensorsOf(config_)) (name < "model.layers.1" ? first_ : second_)[name] = stored;
    Write();
  }
  void Write() {
    WriteFile(folder_.Path("a.safetensors"), first_);
    WriteFile(folder_.Path("b.safetensors"), second_);
  }
  void WriteIndex(const std::map<std::string, std::string>& edits = {}, const std::string& without = "") {
    std::map<std::string, std::string> files;
    for (const auto& [name, stored] : first_) files[name] = "a.safetensors";
    for (const auto& [name, stored] : second_) files[name] = "b.safetensors";
    for (const auto& [name, file] : edits) files[name] = file;
    files.erase(without);
    std::string text = R"({"metadata":{"total_size":1},"weight_map":{)";
    for (const auto& [name, file] : files) {
      absl::StrAppend(&text, absl::EndsWith(text, "{") ? "" : ",", "\"", name, "\":\"", file, "\"");
    }
    folder_.Write("model.safetensors.index.json", text + "}}");
  }

  const DecoderConfig config_ = HfModel("llama");
  const TempFolder folder_;
  Tensors first_, second_;
};

TEST_F(HfIndexedFolder, OpensWhatTheIndexNames) {
  WriteIndex();
  EXPECT_EQ(Problems(folder_.path(), config_), "");
}

TEST_F(HfIndexedFolder, ListsWhereIndexAndFilesDisagree) {
  WriteIndex({{"model.norm.weight", "a.safetensors"}, {"ghost", "b.safetensors"}}, "lm_head.weight");
  EXPECT_THAT(Problems(folder_.path(), config_),
              AllOf(HasSubstr("model.norm.weight: lies in b.safetensors, but the index says a.safetensors"),
                    HasSubstr("ghost: the index places it in b.safetensors, which does not have it"),
                    HasSubstr("lm_head.weight: lies in a.safetensors, but the index does not name it")));
}

TEST_F(HfIndexedFolder, AMissingFileIsNamed) {
  WriteIndex({{"ghost", "c.safetensors"}});
  const absl::Status status = HfWeights::Open(folder_.path(), config_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("c.safetensors"));
}

TEST_F(HfIndexedFolder, TruncatedFilesAreRefused) {
  WriteIndex();
  fs::resize_file(folder_.Path("b.safetensors"), fs::file_size(folder_.Path("b.safetensors")) - 1);
  EXPECT_THAT(Problems(folder_.path(), config_), HasSubstr("b.safetensors is not a valid safetensors file"));
}

TEST_F(HfIndexedFolder, LinksOutOfTheFolderAreRefused) {
  WriteIndex();
  const TempFolder elsewhere;
  fs::rename(folder_.Path("b.safetensors"), elsewhere.Path("b.safetensors"));
  fs::create_symlink(elsewhere.Path("b.safetensors"), folder_.Path("b.safetensors"));
  EXPECT_THAT(Problems(folder_.path(), config_), HasSubstr("is a link that leads out of its folder"));
  // A link that stays inside the folder is fine.
  fs::remove(folder_.Path("b.safetensors"));
  fs::rename(elsewhere.Path("b.safetensors"), folder_.Path("real"));
  fs::create_symlink("real", folder_.Path("b.safetensors"));
  EXPECT_EQ(Problems(folder_.path(), config_), "");
}

TEST_F(HfIndexedFolder, ASnapshotOfTheHubsCacheLinksToItsBlobs) {
  WriteIndex();
  const TempFolder cache;
  const std::string model = cache.Path("models--x--y"), snapshot = model + "/snapshots/abc";
  fs::create_directories(model + "/blobs");
  fs::create_directories(snapshot);
  for (const char* name : {"a.safetensors", "b.safetensors", "model.safetensors.index.json"}) {
    fs::rename(folder_.Path(name), absl::StrCat(model, "/blobs/", name, "-hash"));
    fs::create_symlink(absl::StrCat("../../blobs/", name, "-hash"), absl::StrCat(snapshot, "/", name));
  }
  EXPECT_EQ(Problems(snapshot, config_), "");
  fs::rename(model + "/blobs/b.safetensors-hash", model + "/stray");
  fs::remove(snapshot + "/b.safetensors");
  fs::create_symlink("../../stray", snapshot + "/b.safetensors");
  EXPECT_THAT(Problems(snapshot, config_), HasSubstr("leads out of its folder"));
}

TEST(HfWeightsTest, AFolderWithoutWeightsSaysWhatIsLookedFor) {
  const TempFolder folder;
  folder.Write("pytorch_model.bin", "x");
  const absl::Status status = HfWeights::Open(folder.path(), HfModel("llama")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
  folder.Write("model.safetensors.index.json", "{}");
  EXPECT_THAT(Problems(folder.path(), HfModel("llama")),
              HasSubstr("model.safetensors.index.json: it has no weight_map"));
}

}  // namespace
}  // namespace shale::testing
