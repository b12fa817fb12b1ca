// Adapters go out as a PEFT folder and come back to the bit, or are merged into the weights.
#include "engine/compile/model/adapter.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/api/export.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/config_parts.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/hugging_face/weights.h"
#include "engine/files/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/hugging_face/models.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale::testing {
namespace {

using ::testing::HasSubstr;

DecoderConfig Adapted(DecoderConfig config, std::vector<std::string> targets = {"*"}) {
  config.adapter = AdapterConfig{.rank = 2, .alpha = 3, .rank_stabilized = true, .targets = std::move(targets)};
  return config;
}

absl::Status Export(const DecoderConfig& config, const std::string& folder) {
  return ExportHfAdapter(config, DType::kFloat32, "base", ReadTestWeights, folder);
}

std::set<std::string> TensorsOf(const std::string& folder) {
  const auto reader = SafetensorsReader::Open(folder + "/adapter_model.safetensors").value();
  std::set<std::string> names;
  for (const SafetensorsTensor& tensor : reader.tensors()) names.insert(tensor.name);
  return names;
}

std::set<std::string> TargetsOf(const std::string& folder) {
  const Json json = *ParseStrictJson(ReadFile(folder + "/adapter_config.json", 1 << 20).value());
  return json["target_modules"].get<std::set<std::string>>();
}

TEST(HfAdapterTest, EveryFamilyGoesRoundToTheBit) {
  for (const NamedModel& model : HfModels()) {
    SCOPED_TRACE(model.name);
    const TempFolder folder;
    const DecoderConfig config = Adapted(model.config);
    ASSERT_TRUE(Export(config, folder.Path("a")).ok()) << Export(config, folder.Path("b"));
    AdapterConfig wanted = *config.adapter;
    wanted.targets.clear();
    EXPECT_EQ(ReadHfAdapterConfig(folder.Path("a")).value(), wanted);
    const absl::StatusOr<HfWeights> weights = HfWeights::OpenAdapter(folder.Path("a"), config);
    ASSERT_TRUE(weights.ok()) << weights.status();
    std::set<std::string> names;
    for (const HfParameterShape& parameter : weights->parameters()) {
      names.insert(parameter.name);
      std::vector<float> values(parameter.shape[0] * parameter.shape[1]), given(values.size());
      ASSERT_TRUE(weights->Read(parameter.name, 0, absl::MakeSpan(values)).ok());
      ASSERT_TRUE(ReadTestWeights(parameter.name, 0, absl::MakeSpan(given)).ok());
      EXPECT_TRUE(values == given) << parameter.name;
    }
    EXPECT_EQ(names.size(), 2 * AdaptableLinears(config).size() * config.layers);
    EXPECT_EQ(TensorsOf(folder.Path("a")).size(), names.size());
  }
}

TEST(HfAdapterTest, NamesAreThoseOfPeft) {
  const TempFolder folder;
  ASSERT_TRUE(Export(Adapted(HfModel("llama"), {"q_proj", "blocks.1.ffn.up_proj"}), folder.Path("llama")).ok());
  EXPECT_EQ(TensorsOf(folder.Path("llama")),
            (std::set<std::string>{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
                                   "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
                                   "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight",
                                   "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight",
                                   "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight",
                                   "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"}));
  EXPECT_EQ(TargetsOf(folder.Path("llama")), (std::set<std::string>{"q_proj", "model.layers.1.mlp.up_proj"}));
  ASSERT_TRUE(Export(Adapted(HfModel("gpt2"), {"attention.*"}), folder.Path("gpt2")).ok());
  EXPECT_EQ(TargetsOf(folder.Path("gpt2")),
            (std::set<std::string>{"c_attn", "transformer.h.0.attn.c_proj", "transformer.h.1.attn.c_proj"}));
  EXPECT_THAT(ReadFile(folder.Path("gpt2/adapter_config.json"), 9999).value(), HasSubstr("\"fan_in_fan_out\": true"));
  ASSERT_TRUE(Export(Adapted(HfModel("falcon_40b")), folder.Path("falcon")).ok());
  EXPECT_EQ(TargetsOf(folder.Path("falcon")),
            (std::set<std::string>{"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}));
}

// Falcon stores the rows of B in the order of its groups. Merging must find them in the engine's order.
TEST(HfAdapterTest, MergedWeightsAreUpdatedInAnyRange) {
  for (const char* name : {"qwen2", "gpt2", "falcon_40b"}) {
    SCOPED_TRACE(name);
    const DecoderConfig config = Adapted(HfModel(name), {"v_proj", "c_attn", "query_key_value"});
    const AdaptableLinear linear = AdaptedLinears(config, 1).front();
    const std::string weight = absl::StrCat("blocks.1.", linear.linear, ".weight");
    const int64_t rows = (config.heads + 2 * config.kv_heads) * config.head_width, columns = linear.in;
    std::vector<float> wanted(rows * columns);
    for (int64_t i = 0; i < rows * columns; ++i) {
      const int64_t row = i / columns - linear.row;
      double sum = 0;
      for (int64_t r = 0; row >= 0 && row < linear.out && r < 2; ++r) {
        sum += static_cast<double>(TestWeight(linear.NameOfB(1), row * 2 + r)) *
               TestWeight(linear.NameOfA(1), r * columns + i % columns);
      }
      wanted[i] = static_cast<float>(TestWeight(weight, i) + 3 / std::sqrt(2.0) * sum);
    }
    const HfParameterReader merged = WithAdaptersMerged(config, ReadTestWeights);
    for (const int64_t step : {int64_t{1} << 20, int64_t{7}, columns + 1}) {
      std::vector<float> found(wanted.size());
      for (int64_t at = 0; at < rows * columns; at += step) {
        const int64_t count = std::min(step, rows * columns - at);
        ASSERT_TRUE(merged(weight, at, absl::MakeSpan(found).subspan(at, count)).ok());
      }
      for (size_t i = 0; i < wanted.size(); ++i) ASSERT_FLOAT_EQ(found[i], wanted[i]) << i;
    }
    std::vector<float> other(4), given(4);
    ASSERT_TRUE(merged("blocks.1.ffn.down.weight", 3, absl::MakeSpan(other)).ok());
    ASSERT_TRUE(ReadTestWeights("blocks.1.ffn.down.weight", 3, absl::MakeSpan(given)).ok());
    EXPECT_EQ(other, given);
  }
}

// Regression: files with the names of PEFT's memory were refused. Trainers write them that save the state of the model
// themselves.
TEST(HfAdapterTest, TensorsMayHaveTheNameOfTheAdapter) {
  const TempFolder folder;
  const DecoderConfig config = Adapted(HfModel("llama"), {"q_proj"});
  ASSERT_TRUE(Export(config, folder.Path("a")).ok());
  const std::string bytes = ReadFile(folder.Path("a/adapter_model.safetensors"), 1 << 20).value();
  const auto read = [&] {
    const absl::StatusOr<HfWeights> weights = HfWeights::OpenAdapter(folder.Path("a"), config);
    EXPECT_TRUE(weights.ok()) << weights.status();
    std::vector<float> values(2 * 12);
    EXPECT_TRUE(weights.ok() &&
                weights->Read("blocks.1.attention.q_proj.lora_A.weight", 0, absl::MakeSpan(values)).ok());
    return values;
  };
  const std::vector<float> wanted = read();
  // The header is JSON after its length in eight bytes.
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  std::string header = absl::StrReplaceAll(bytes.substr(8, length), {{".lora_A.weight", ".lora_A.default.weight"},
                                                                     {".lora_B.weight", ".lora_B.default.weight"}});
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t longer = header.size();
  folder.Write("a/adapter_model.safetensors",
               absl::StrCat(std::string(reinterpret_cast<const char*>(&longer), 8), header, bytes.substr(8 + length)));
  EXPECT_EQ(read(), wanted);
}

// Every key of LoraConfig of PEFT 0.21, set to a value that is not its default, is read, says nothing new, or is
// refused.
TEST(HfAdapterTest, KeysOfPeftAreKnownOrRefused) {
  const TempFolder folder;
  const auto refusal = [&](absl::string_view members) {
    folder.Write("adapter_config.json", absl::StrCat(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2)", members, "}"));
    return std::string(ReadHfAdapterConfig(folder.path()).status().message());
  };
  for (const absl::string_view key :
       {"use_dora", "lora_bias", "use_qalora", "rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication",
        "trainable_token_indices", "target_parameters", "alora_invocation_tokens", "use_bdlora", "arrow_config",
        "kasa_config", "megatron_config", "monteclora_config", "velora_config", "a_key_of_a_later_peft"}) {
    for (const absl::string_view value : {"true", "[1]", "{\"a\": 1}", "3", "\"x\""}) {
      EXPECT_THAT(refusal(absl::StrCat(", \"", key, "\": ", value)), HasSubstr(absl::StrCat(key, ": found "))) << value;
    }
    EXPECT_EQ(refusal(absl::StrCat(", \"", key, "\": null")), "");
    EXPECT_EQ(refusal(absl::StrCat(", \"", key, "\": false")), "");
  }
  EXPECT_EQ(refusal(R"(, "auto_mapping": {"a": "b"}, "base_model_name_or_path": "x", "corda_config": {"a": 1},
      "ensure_weight_tying": true, "eva_config": {"a": 1}, "exclude_modules": ["x"], "fan_in_fan_out": true,
      "inference_mode": true, "layers_pattern": "h", "layers_to_transform": [0], "loftq_config": {"loftq_bits": 4},
      "lora_ga_config": {"a": 1}, "megatron_core": "megatron.core",
      "peft_version": "0.21.0", "qalora_group_size": 16, "revision": "main", "target_modules": ["q_proj"],
      "runtime_config": {"ephemeral_gpu_offload": false}, "task_type": "CAUSAL_LM")"),
            "");
  EXPECT_EQ(refusal(R"(, "lora_dropout": 0.05)"), "");
  EXPECT_EQ(HfAdapterDropout(folder.path()).value(), "lora_dropout 0.05");
  EXPECT_THAT(refusal(R"(, "lora_dropout": 2)"), HasSubstr("lora_dropout: found 2"));
}

// PEFT ignores tensors of layers that the config leaves out, with a warning, and Shale used them.
TEST(HfAdapterTest, TheConfigNamesTheLayersThatHaveTensors) {
  const TempFolder folder;
  const DecoderConfig config = Adapted(HfModel("llama"), {"q_proj", "blocks.1.ffn.up_proj"});
  const auto refusal = [&](absl::string_view members) {
    folder.Write("adapter_config.json", absl::StrCat("{", members, "}"));
    return std::string(CheckHfAdapterModules(folder.path(), config).message());
  };
  for (const absl::string_view same :
       {"", R"("target_modules": ["q_proj", "up_proj", "v_proj"])", R"("target_modules": "all-linear")",
        R"("target_modules": ["self_attn.q_proj", "model.layers.1.mlp.up_proj"])",
        R"("target_modules": null, "exclude_modules": ["k_proj", "layers.0.mlp.up_proj"])",
        R"("layers_to_transform": [1, 0, 7], "layers_pattern": "layers")"}) {
    EXPECT_EQ(refusal(same), "");
  }
  const std::string wrong = refusal(R"("target_modules": ["proj", "up_proj"])");
  EXPECT_THAT(wrong, HasSubstr("target_modules: found [\"proj\",\"up_proj\"]; allowed: what includes "
                               "model.layers.0.self_attn.q_proj, whose adapter PEFT ignores otherwise"));
  EXPECT_THAT(wrong, ::testing::Not(HasSubstr("includes model.layers.1.mlp.up_proj")));
  EXPECT_THAT(refusal(R"("exclude_modules": ["layers.1.mlp.up_proj"])"), HasSubstr("exclude_modules: found"));
  EXPECT_THAT(refusal(R"("layers_to_transform": 0)"), HasSubstr("layers_to_transform: found 0; allowed: what includes "
                                                                "model.layers.1.self_attn.q_proj"));
}

TEST(HfAdapterTest, OtherFoldersAreRefused) {
  const TempFolder folder;
  const DecoderConfig config = Adapted(HfModel("llama"), {"q_proj"});
  ASSERT_TRUE(Export(config, folder.Path("a")).ok());
  const auto opened = [&](const DecoderConfig& as) {
    return std::string(HfWeights::OpenAdapter(folder.Path("a"), as).status().message());
  };
  EXPECT_THAT(opened(Adapted(HfModel("llama"), {"q_proj", "k_proj"})),
              HasSubstr("layers.0.self_attn.k_proj.lora_A.weight: missing, wanted [2, 12]"));
  EXPECT_THAT(opened(Adapted(HfModel("llama"), {"k_proj"})), HasSubstr("the model has no such tensor"));
  EXPECT_THAT(opened(Adapted(HfModel("odd_width"), {"q_proj"})), HasSubstr("found [2, 12], wanted [2, 11]"));
  EXPECT_THAT(std::string(HfWeights::OpenAdapter(folder.path(), config).status().message()),
              HasSubstr("has no adapter_model.safetensors"));

  const std::string whole = ReadFile(folder.Path("a/adapter_model.safetensors"), 1 << 20).value();
  for (const size_t size : {size_t{0}, size_t{7}, whole.size() / 2, whole.size() - 1}) {
    folder.Write("a/adapter_model.safetensors", whole.substr(0, size));
    EXPECT_THAT(opened(config), HasSubstr("a/adapter_model.safetensors is not a valid safetensors file: ")) << size;
  }

  const auto refused = [&](const std::string& text) {
    folder.Write("a/adapter_config.json", text);
    return std::string(ReadHfAdapterConfig(folder.Path("a")).status().message());
  };
  EXPECT_THAT(refused(R"({"peft_type": "IA3", "r": 0, "lora_alpha": "x"})"),
              AllOf(HasSubstr("peft_type: found \"IA3\"; allowed: LORA"),
                    HasSubstr("r: found 0; allowed: a whole number from 1 to 65536"), HasSubstr("lora_alpha: found")));
  EXPECT_THAT(refused(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "bias": "all", "use_dora": true,
                          "rank_pattern": {"q_proj": 4}, "modules_to_save": ["lm_head"]})"),
              AllOf(HasSubstr("bias: found \"all\"; allowed: none"), HasSubstr("use_dora"), HasSubstr("rank_pattern"),
                    HasSubstr("modules_to_save")));
  for (const char* how : {"pissa", "pissa_niter_16", "corda", "olora", "OLoRA", "loftq", "lora_ga"}) {
    EXPECT_THAT(
        refused(absl::StrCat(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "init_lora_weights": ")", how, "\"}")),
        HasSubstr(absl::StrCat("init_lora_weights: found \"", how, "\"; allowed: an initialization that leaves the")));
  }
  EXPECT_THAT(refused(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "use_qalora": true,
                          "alora_invocation_tokens": [7], "target_parameters": ["experts.weight"]})"),
              AllOf(HasSubstr("use_qalora"), HasSubstr("alora_invocation_tokens"), HasSubstr("target_parameters")));
  for (const char* how : {"true", "false", "null", "\"gaussian\"", "\"eva\"", "\"orthogonal\""}) {
    EXPECT_EQ(
        refused(absl::StrCat(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "init_lora_weights": )", how, "}")), "");
  }
  EXPECT_THAT(refused("{"), HasSubstr("adapter_config.json"));
}

}  // namespace
}  // namespace shale::testing
