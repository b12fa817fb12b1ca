// The engine builds the model that transformers computes from a config.json, or refuses the file.
#include "engine/files/hugging_face/config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/files/hugging_face/config_parts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/hugging_face/models.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Files from the hub, shortened to what matters.
constexpr char kLlama31[] = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008], "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
  "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256})";
constexpr char kMistral[] = R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 32000})";
// Gemma 3 27B.
constexpr char kGemma3[] = R"({"model_type": "gemma3_text", "head_dim": 128, "hidden_activation": "gelu_pytorch_tanh",
  "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32, "num_hidden_layers": 62,
  "num_key_value_heads": 16, "query_pre_attn_scalar": 168, "rope_local_base_freq": 10000, "rope_theta": 1000000,
  "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024, "vocab_size": 262208})";
constexpr char kQwen2[] = R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
  "max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
  "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})";
constexpr char kQwen3[] = R"({"model_type": "qwen3", "attention_bias": false, "head_dim": 128, "hidden_size": 1024,
  "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16,
  "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
  "vocab_size": 151936})";
constexpr char kGpt2[] = R"({"activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
  "n_positions": 1024, "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
  "vocab_size": 50257})";
constexpr char kFalcon7b[] = R"({"alibi": false, "apply_residual_connection_post_layernorm": false,
  "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"}, "bias": false, "hidden_dropout": 0.0,
  "hidden_size": 4544, "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": true,
  "new_decoder_architecture": false, "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71,
  "parallel_attn": true, "vocab_size": 65024})";
constexpr char kFalcon40b[] = R"({"alibi": false, "bias": false, "hidden_size": 8192, "model_type": "falcon",
  "new_decoder_architecture": true, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
  "parallel_attn": true, "vocab_size": 65024})";

DecoderConfig Parse(absl::string_view text) {
  const absl::StatusOr<DecoderConfig> config = ParseHfConfig(text, "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : DecoderConfig();
}

std::string ConfigRefusal(absl::string_view text) {
  const absl::Status status = ParseHfConfig(text, "m/config.json").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_THAT(std::string(status.message()), HasSubstr("m/config.json: "));
  return std::string(status.message());
}

// Returns `text` with `member` ("key": value) inserted at the front.
std::string With(absl::string_view text, absl::string_view member) {
  return absl::StrCat("{", member, ", ", text.substr(1));
}
std::string Replace(absl::string_view text, absl::string_view from, absl::string_view to) {
  const std::string replaced = absl::StrReplaceAll(text, {{from, to}});
  EXPECT_NE(replaced, std::string(text)) << from;
  return replaced;
}

// Returns Gemma 3 with `kinds` as the members of rope_parameters, in place of its scaling.
std::string WithKinds(absl::string_view kinds) {
  return Replace(kGemma3, R"("rope_scaling": {"factor": 8.0, "rope_type": "linear"})",
                 absl::StrCat("\"rope_parameters\": {", kinds, "}"));
}

TEST(HfConfigTest, LlamaThreePointOne) {
  DecoderConfig wanted;
  wanted.vocabulary = 128256;
  wanted.width = 4096;
  wanted.layers = 32;
  wanted.heads = 32;
  wanted.kv_heads = 8;
  wanted.head_width = 128;
  wanted.hidden = 14336;
  wanted.max_positions = 131072;
  wanted.rope_theta = 500000;
  wanted.rope_scaling =
      RopeScalingConfig{.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192};
  EXPECT_EQ(Parse(kLlama31), wanted);
}

TEST(HfConfigTest, BothSpellingsOfRotaryScalingMeanTheSame) {
  std::string newer = Replace(kLlama31, "\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 500000.0, ");
  newer = Replace(newer, "\"rope_theta\": 500000.0, \"tie", "\"tie");
  EXPECT_EQ(Parse(newer), Parse(kLlama31));
  EXPECT_EQ(Parse(Replace(kLlama31, "\"rope_type\"", "\"type\"")), Parse(kLlama31));
  // Values that the table lacks come from the keys beside it.
  EXPECT_EQ(Parse(Replace(kLlama31, "\"rope_scaling\"", "\"rope_parameters\"")), Parse(kLlama31));
}

// Regression: a length outside of the scaling was refused, unless the scaling had the same. In transformers it wins.
TEST(HfConfigTest, TheOriginalLengthMayLieOutsideOfTheScaling) {
  constexpr char kInside[] = R"(,
                   "original_max_position_embeddings": 8192)";
  const std::string without = Replace(kLlama31, kInside, "");
  EXPECT_EQ(Parse(without).rope_scaling->original_context, 131072);
  EXPECT_EQ(Parse(With(without, "\"original_max_position_embeddings\": 8192")), Parse(kLlama31));
  EXPECT_EQ(Parse(With(kLlama31, "\"original_max_position_embeddings\": 4096")).rope_scaling->original_context, 4096);
  const std::string newer = Replace(without, "\"rope_scaling\"", "\"rope_parameters\"");
  EXPECT_EQ(Parse(With(newer, "\"original_max_position_embeddings\": 8192")), Parse(kLlama31));
}

// Regression: dropout was ignored without a word. Evaluation does not depend on it, so it is said and not refused.
TEST(HfConfigTest, DropoutIsFoundWhereTransformersTakesIt) {
  const TempFolder folder;
  const auto dropout = [&](absl::string_view text) {
    folder.Write("config.json", std::string(text));
    EXPECT_EQ(ReadHfConfig(folder.path()).value(), Parse(text));
    return HfDropout(folder.path()).value();
  };
  EXPECT_EQ(dropout(kLlama31), "");
  for (const absl::string_view text : {kMistral, kQwen2, kQwen3}) {
    EXPECT_EQ(dropout(text), "");
    EXPECT_EQ(dropout(With(text, "\"attention_dropout\": 0.05")), "attention_dropout 0.05");
    EXPECT_EQ(dropout(With(text, "\"attn_pdrop\": 0.05, \"hidden_dropout\": 0.1")), "");  // Keys of other families.
  }
  EXPECT_EQ(dropout(Replace(kLlama31, "\"attention_dropout\": 0.0", "\"attention_dropout\": 1")),
            "attention_dropout 1");
  // The file has two of the three keys. The third has the default of GPT2Config.
  EXPECT_EQ(dropout(kGpt2), "attn_pdrop 0.1, embd_pdrop 0.1, resid_pdrop 0.1");
  EXPECT_EQ(dropout(Replace(With(kGpt2, "\"resid_pdrop\": 0"), "_pdrop\": 0.1", "_pdrop\": 0.0")), "");
  EXPECT_EQ(dropout(kFalcon40b), "");
  EXPECT_EQ(dropout(With(kFalcon40b, "\"hidden_dropout\": 0.2, \"attention_dropout\": 0.1")),
            "attention_dropout 0.1, hidden_dropout 0.2");
}

TEST(HfConfigTest, TheOtherFamilies) {
  EXPECT_EQ(Parse(kMistral).attention_window, 4096);
  EXPECT_EQ(Parse(kMistral).kv_heads, 8);

  const DecoderConfig qwen2 = Parse(kQwen2);
  EXPECT_TRUE(qwen2.qkv_bias && qwen2.tied_head && !qwen2.linear_bias);
  EXPECT_EQ(qwen2.head_width, 64);
  EXPECT_EQ(qwen2.attention_window, 0);

  const DecoderConfig qwen3 = Parse(kQwen3);
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_width, 128);  // Not 1024 / 16.
  EXPECT_EQ(qwen3.rope_theta, 1e6);

  const DecoderConfig gpt2 = Parse(kGpt2);
  EXPECT_EQ(gpt2.norm, NormKind::kLayerNorm);
  EXPECT_EQ(gpt2.position, PositionKind::kLearned);
  EXPECT_EQ(gpt2.activation, Activation::kGeluTanh);
  EXPECT_TRUE(gpt2.tied_head && gpt2.qkv_bias && gpt2.linear_bias);
  EXPECT_EQ(gpt2.hidden, 4 * 768);

  const DecoderConfig falcon = Parse(kFalcon7b);
  EXPECT_TRUE(falcon.parallel_block && !falcon.parallel_norms && falcon.tied_head && !falcon.linear_bias);
  EXPECT_EQ(falcon.kv_heads, 1);  // num_kv_heads says 71, but multi_query decides.
  EXPECT_EQ(falcon.activation, Activation::kGeluErf);
  EXPECT_EQ(falcon.hidden, 4 * 4544);
  EXPECT_EQ(Parse(kFalcon40b).kv_heads, 8);
  EXPECT_TRUE(Parse(kFalcon40b).parallel_norms);
}

TEST(HfConfigTest, AbsentKeysMeanWhatTransformersTakes) {
  const std::string bare = R"({"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 6,
    "num_hidden_layers": 1, "num_attention_heads": 2})";
  const DecoderConfig llama = Parse(bare);
  EXPECT_EQ(llama.kv_heads, 2);
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_FALSE(llama.tied_head);
  const std::string mistral = With(Replace(bare, "llama", "mistral"), "\"num_key_value_heads\": null");
  EXPECT_EQ(Parse(mistral).kv_heads, 2);
  EXPECT_EQ(Parse(mistral).attention_window, 4096);
  EXPECT_EQ(Parse(With(mistral, "\"sliding_window\": null")).attention_window, 0);
}

TEST(HfConfigTest, WindowsCountOnlyWhereTheyAreInForce) {
  const std::string on = Replace(kQwen2, "\"use_sliding_window\": false", "\"use_sliding_window\": true");
  EXPECT_EQ(Parse(Replace(on, "\"max_window_layers\": 21", "\"max_window_layers\": 0")).attention_window, 32768);
  EXPECT_EQ(Parse(Replace(on, "\"max_window_layers\": 21", "\"max_window_layers\": 24")).attention_window, 0);
  EXPECT_EQ(Parse(on).Block(20).attention_window, 0);
  EXPECT_EQ(Parse(on).Block(21).attention_window, 32768);

  const std::string two = Replace(on, "\"num_hidden_layers\": 24", "\"num_hidden_layers\": 2");
  const auto typed = [&](absl::string_view a, absl::string_view b) {
    return With(two, absl::StrCat("\"layer_types\": [\"", a, "_attention\", \"", b, "_attention\"]"));
  };
  EXPECT_EQ(Parse(typed("sliding", "sliding")).attention_window, 32768);
  EXPECT_EQ(Parse(typed("full", "full")).attention_window, 0);
  EXPECT_EQ(Parse(typed("full", "sliding")).layer_pattern, "FW");
  EXPECT_THAT(ConfigRefusal(typed("linear", "linear")), HasSubstr("layer_types"));
  EXPECT_THAT(ConfigRefusal(With(two, "\"layer_types\": [\"full_attention\"]")), HasSubstr("layer_types"));
  EXPECT_THAT(ConfigRefusal(With(kLlama31, "\"layer_types\": [\"sliding_attention\"]")), HasSubstr("layer_types"));
}

TEST(HfConfigTest, RefusesWhatTheEngineDoesNotCompute) {
  const std::string falcon_bare = Replace(kFalcon7b, "\"alibi\": false", "\"use_cache\": true");
  const struct {
    std::string text;
    std::string key;
  } cases[] = {
      {Replace(kLlama31, "\"llama\"", "\"gemma\""), "model_type: found \"gemma\"; allowed: llama, mistral"},
      {Replace(kLlama31, "\"llama\"", "\"gemma3\""), "save its text part"},
      {With(kGemma3, "\"attn_logit_softcapping\": 50.0"), "attn_logit_softcapping: found 50"},
      {With(kGemma3, "\"use_bidirectional_attention\": true"), "use_bidirectional_attention: found true"},
      {With(kGemma3, "\"attention_bias\": true"), "attention_bias: found true"},
      {Replace(kGemma3, "gelu_pytorch_tanh", "gelu"), "hidden_activation: found \"gelu\""},
      {With(kGemma3, "\"rope_parameters\": {\"full_attention\": {}}"), "rope_scaling: found"},
      {Replace(kGemma3, "\"rope_type\"", "\"type\""), "rope_scaling.type: found \"linear\""},
      {Replace(kGemma3, "\"rope_type\"", "\"mscale\": 1, \"rope_type\""), "rope_scaling.mscale: found 1"},
      {Replace(kGemma3, "\"rope_scaling\"", "\"rope_parameters\""), "rope_parameters.factor: found 8"},
      {Replace(kGemma3, "\"sliding_window\": 1024", "\"sliding_window\": null"), "sliding_window: found null"},
      {WithKinds(R"("sliding_attention": {"type": "linear", "factor": 8})"),
       "rope_parameters.sliding_attention.type: found \"linear\""},
      {WithKinds(R"("sliding_attention": {"factor": 8})"), "rope_parameters.sliding_attention.factor: found 8"},
      {WithKinds(R"("full_attention": {"rope_theta": 500.0, "beta_fast": 8})"),
       "rope_parameters.full_attention.beta_fast: found 8"},
      {Replace(kLlama31, "\"model_type\": \"llama\"", "\"x\": 1"), "model_type: found nothing"},
      {Replace(kLlama31, "\"llama3\"", "\"yarn\""), "rope_scaling.rope_type: found \"yarn\""},
      {Replace(kLlama31, "\"llama3\"", "\"linear\""), "rope_scaling.low_freq_factor: found"},
      {Replace(kLlama31, "\"factor\"", "\"mscale\""), "rope_scaling.mscale"},
      {Replace(kLlama31, "\"low_freq_factor\": 1.0", "\"low_freq_factor\": 4.0"), "rope_scaling.low_freq_factor"},
      {With(kLlama31, "\"rope_parameters\": {\"rope_type\": \"default\"}"), "rope_scaling: found"},
      {With(kQwen2, "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}"),
       "rope_parameters.full_attention"},
      {With(kQwen2, "\"rope_parameters\": {\"rope_theta\": 7.0}"), "rope_theta: found 1000000.0; allowed: 7"},
      {With(kQwen2, "\"rope_parameters\": [1]"), "rope_parameters: found [1]"},
      {With(kMistral, "\"is_causal\": false"), "is_causal: found false; allowed: true"},
      {With(kGpt2, "\"is_causal\": null"), "is_causal: found null; allowed: true"},
      {With(kMistral, "\"attention_dropout\": 1.5"), "attention_dropout: found 1.5; allowed: a number from 0 to 1"},
      {Replace(kFalcon7b, "\"hidden_dropout\": 0.0", "\"hidden_dropout\": \"0\""), "hidden_dropout: found \"0\""},
      {With(kLlama31, "\"partial_rotary_factor\": 0.5"), "partial_rotary_factor: found 0.5"},
      {With(kLlama31, "\"quantization_config\": {\"quant_method\": \"fp8\"}"), "quantization_config"},
      {Replace(kLlama31, "\"silu\"", "\"gelu\""), "hidden_act: found \"gelu\""},
      {Replace(kLlama31, "\"attention_bias\": false", "\"attention_bias\": true"), "mlp_bias: found false"},
      {Replace(kQwen3, "\"attention_bias\": false", "\"attention_bias\": true"), "attention_bias: found true"},
      {Replace(kGpt2, "gelu_new", "relu"), "activation_function: found \"relu\""},
      {With(kGpt2, "\"scale_attn_by_inverse_layer_idx\": true"), "scale_attn_by_inverse_layer_idx"},
      {With(kGpt2, "\"scale_attn_weights\": false"), "scale_attn_weights: found false"},
      {With(kGpt2, "\"add_cross_attention\": true"), "add_cross_attention"},
      {With(kGpt2, "\"hidden_size\": 512"), "n_embd: found 768; allowed: 512"},
      {With(falcon_bare, "\"alibi\": true"), "alibi: found true"},
      {With(kFalcon7b, "\"num_ln_in_parallel_attn\": 2"), "num_ln_in_parallel_attn"},
      {Replace(kFalcon40b, "\"parallel_attn\": true", "\"parallel_attn\": false"), "parallel_attn: found false"},
      {With(kFalcon7b, "\"n_embed\": 1"), "n_embed"},
      {Replace(Replace(kFalcon7b, "\"multi_query\": true", "\"multi_query\": false"), "\"num_kv_heads\": 71",
               "\"num_kv_heads\": 3"),
       "num_kv_heads: found 3; allowed: 71"},
  };
  for (const auto& test : cases) EXPECT_THAT(ConfigRefusal(test.text), HasSubstr(test.key));
}

TEST(HfConfigTest, RefusesNumbersThatAreNone) {
  for (const absl::string_view value : {"0", "-1", "1.5", "4096.0", "\"4096\"", "true", "[4096]", "null", "1e3",
                                        "99999999999", "18446744073709551615", "9223372036854775808"}) {
    EXPECT_THAT(ConfigRefusal(Replace(kLlama31, "\"hidden_size\": 4096", absl::StrCat("\"hidden_size\": ", value))),
                HasSubstr("hidden_size: found "));
  }
  for (const absl::string_view value : {"0", "-1e-5", "\"1e-5\"", "1e300", "false", "{}"}) {
    EXPECT_THAT(ConfigRefusal(Replace(kLlama31, "1e-05", value)), HasSubstr("rms_norm_eps: found "));
  }
  EXPECT_THAT(ConfigRefusal(Replace(kLlama31, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 5")),
              HasSubstr("num_key_value_heads: found 5; allowed: a divisor of num_attention_heads 32"));
  EXPECT_THAT(ConfigRefusal(Replace(kLlama31, "\"hidden_size\": 4096", "\"hidden_size\": 4100")),
              HasSubstr("hidden_size"));
  EXPECT_THAT(ConfigRefusal(With(kLlama31, "\"head_dim\": 7")), HasSubstr("head_dim: found 7"));
  EXPECT_THAT(ConfigRefusal(With(kQwen2, "\"initializer_range\": -1")), HasSubstr("initializer_range"));
}

TEST(HfConfigTest, ReportsEverythingAtOnce) {
  std::string text = Replace(kLlama31, "\"vocab_size\": 128256", "\"vocab_size\": 0");
  text = Replace(text, "\"silu\"", "\"relu\"");
  EXPECT_THAT(ConfigRefusal(text), AllOf(HasSubstr("vocab_size: found 0"), HasSubstr("hidden_act: found \"relu\"")));
}

TEST(HfConfigTest, RefusesHostileText) {
  for (const absl::string_view text : {"", " ", "[]", "1", "null", "\"x\"", "{", "{]", "{\"a\":1}x", "{\"a\":NaN}",
                                       "{'a':1}", "{\"a\":1e999}", "\xff{}", "{\"a\":\"\xff\"}", "[{}]"}) {
    ConfigRefusal(text);
  }
  // What followed a zero byte was dropped.
  const absl::string_view zero("\0{\"a\":1}", 8);
  EXPECT_THAT(ConfigRefusal(absl::StrCat(kLlama31, zero)), HasSubstr("which is zero"));
  EXPECT_THAT(ConfigRefusal(With(kLlama31, "\"hidden_size\": 1")), HasSubstr("\"hidden_size\" occurs twice"));
  EXPECT_THAT(ConfigRefusal(With(kLlama31, "\"x\": {\"y\": {\"z\": 1, \"z\": 2}}")), HasSubstr("\"z\" occurs twice"));
  for (const absl::string_view open : {"[", "{\"a\":"}) {
    std::string deep = "{\"a\":";
    for (int i = 0; i < 100000; ++i) absl::StrAppend(&deep, open);
    EXPECT_THAT(ConfigRefusal(deep), HasSubstr("nests deeper than"));
  }
  EXPECT_LT(ConfigRefusal(Replace(kLlama31, "\"silu\"", absl::StrCat("\"", std::string(100000, 'x'), "\""))).size(),
            400);
}

// Keys come from strangers as values do. Fuzzing found messages that showed them unquoted and without limit.
TEST(HfConfigTest, MessagesShowStrangeKeysQuotedAndNotAll) {
  const auto refusal = [](absl::string_view keys) {
    return ConfigRefusal(Replace(kLlama31, "\"rope_type\"", absl::StrCat(keys, "\"rope_type\"")));
  };
  EXPECT_THAT(refusal("\"\\u001b[2J\": 1, "), HasSubstr("rope_scaling.\"\\u001b[2J\": found 1"));
  EXPECT_LT(refusal(absl::StrCat("\"", std::string(100000, 'x'), "\": 1, ")).size(), 600);
  std::string many;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&many, "\"key", i, "\": 1, ");
  EXPECT_THAT(refusal(many), HasSubstr("and 980 more errors"));
}

TEST(HfConfigTest, Gemma3HasTwoKindsOfLayers) {
  const DecoderConfig c = Parse(kGemma3);
  EXPECT_EQ(c.layer_pattern, "WWWWWF");
  EXPECT_EQ(c.score_width, 168);
  EXPECT_EQ(static_cast<int64_t>(c.ParameterCount(1)), 27009346304);  // Those of the text part.
  const BlockConfig local = c.Block(4), global = c.Block(5);
  EXPECT_EQ(local.attention_window, 1024);
  EXPECT_EQ(local.rope, RopeConfig{.theta = 10000});
  EXPECT_EQ(global.attention_window, 0);
  EXPECT_EQ(global.rope,
            (RopeConfig{.theta = 1e6, .scaling = RopeScalingConfig{.kind = RopeScalingKind::kLinear, .factor = 8}}));
  // What transformers 5 writes, and what it takes for absent keys.
  std::string newer = Replace(kGemma3, "\"rope_local_base_freq\": 10000, \"rope_theta\": 1000000,", "");
  newer = Replace(newer, "\"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}",
                  "\"rope_parameters\": {\"full_attention\": {\"factor\": 8.0, \"rope_type\": \"linear\"}}");
  EXPECT_EQ(Parse(newer), c);
  newer = Replace(newer, "\"rope_type\"", "\"type\"");
  EXPECT_EQ(Parse(newer), c);
  // The base beside a scaling.
  const std::string beside = Replace(Replace(kGemma3, "\"rope_theta\": 1000000,", ""), "\"factor\": 8.0",
                                     "\"factor\": 8.0, \"rope_theta\": 500.0");
  EXPECT_EQ(Parse(beside).rope_theta, 500);
  EXPECT_EQ(Parse(beside).rope_scaling, c.rope_scaling);
  // In an object of one kind, the value of the scaling counts.
  const DecoderConfig nested =
      Parse(With(WithKinds(R"("full_attention": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                 "high_freq_factor": 4.0, "original_max_position_embeddings": 64})"),
                 "\"original_max_position_embeddings\": 32"));
  ASSERT_TRUE(nested.rope_scaling.has_value());
  EXPECT_EQ(nested.rope_scaling->original_context, 64);
  // A base of windows means nothing where there are none.
  EXPECT_EQ(Parse(Replace(kGemma3, "\"num_hidden_layers\": 62",
                          R"("num_hidden_layers": 1, "layer_types": ["full_attention"])"))
                .window_rope_theta,
            0);
  // A list counts more than a period.
  const std::string three = Replace(kGemma3, "\"num_hidden_layers\": 62", "\"num_hidden_layers\": 3");
  EXPECT_EQ(Parse(three).layer_pattern, "");
  EXPECT_EQ(Parse(With(three, "\"sliding_window_pattern\": 2")).layer_pattern, "WF");
  EXPECT_EQ(
      Parse(With(three, R"("layer_types": ["full_attention", "full_attention", "sliding_attention"])")).layer_pattern,
      "FFW");
}

TEST(HfConfigTest, Gemma2HasCapsUnlessTheyAreNull) {
  const std::string text = Replace(Replace(kGemma3, "gemma3_text", "gemma2"), "\"rope_local_base_freq\": 10000,", "");
  EXPECT_EQ(Parse(text).layer_pattern, "WF");
  EXPECT_EQ(Parse(text).attention_cap, 50);
  EXPECT_EQ(Parse(text).logit_cap, 30);
  EXPECT_EQ(Parse(With(text, "\"attn_logit_softcapping\": null")).attention_cap, 0);
  EXPECT_EQ(Parse(With(text, "\"final_logit_softcapping\": null")).logit_cap, 0);
}

// A config that the engine exports reads back as the same model. With a base file it keeps the family too.
TEST(HfConfigTest, TextAndConfigGoRound) {
  for (const NamedModel& model : HfModels()) {
    SCOPED_TRACE(model.name);
    const absl::StatusOr<std::string> text = HfConfigText(model.config, {});
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(Parse(*text), model.config);
    const absl::StatusOr<std::string> again = HfConfigText(model.config, {.base = *text});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(Parse(*again), model.config);
  }
  for (const absl::string_view text : {kLlama31, kMistral, kQwen2, kQwen3, kGpt2, kFalcon7b, kFalcon40b, kGemma3}) {
    const DecoderConfig config = Parse(text);
    EXPECT_EQ(Parse(HfConfigText(config, {.base = std::string(text)}).value()), config);
    EXPECT_EQ(Parse(HfConfigText(config, {}).value()), config);
  }
}

TEST(HfConfigTest, KeysOfTheBaseThatTheEngineDoesNotDecideStay) {
  const std::string text = HfConfigText(Parse(kLlama31), {.dtype = SafetensorsDType::kF16, .base = kLlama31}).value();
  EXPECT_THAT(text, AllOf(HasSubstr("128008"), HasSubstr("\"torch_dtype\": \"float16\""), Not(HasSubstr("bfloat16")),
                          HasSubstr("\"rope_scaling\": {"), Not(HasSubstr("rope_parameters"))));
  EXPECT_THAT(HfConfigText(Parse(kFalcon7b), {.base = kFalcon7b}).value(), Not(HasSubstr("auto_map")));
  EXPECT_THAT(HfConfigText(Parse(kGpt2), {.base = kGpt2}).value(), HasSubstr("\"attn_pdrop\": 0.1"));
  EXPECT_THAT(HfConfigText(Parse(kGpt2), {}).value(), HasSubstr("\"attn_pdrop\": 0.0"));
}

TEST(HfConfigTest, AModelThatNoFamilyHasIsNotWritten) {
  const auto reason = [](const char* name, auto edit, HfConfigOptions options = {}) {
    DecoderConfig config = HfModel(name);
    edit(config);
    const absl::Status status = HfConfigText(config, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  using C = DecoderConfig;
  EXPECT_THAT(reason("llama", [](C& c) { c.linear_bias = true; }), HasSubstr("qkv_bias"));
  EXPECT_THAT(reason("llama", [](C& c) { c.position = PositionKind::kLearned; }), HasSubstr("learned positions"));
  EXPECT_THAT(reason("llama", [](C& c) { c.activation = Activation::kGeluErf; }), HasSubstr("GELU"));
  EXPECT_THAT(reason("qwen3", [](C& c) { c.qkv_bias = true; }), HasSubstr("qkv_bias"));
  EXPECT_THAT(reason("gpt2", [](C& c) { c.qkv_bias = false; }), HasSubstr("without bias"));
  EXPECT_THAT(reason("gpt2", [](C& c) { c.kv_heads = 1; }), HasSubstr("kv_heads 1"));
  EXPECT_THAT(reason("gpt2", [](C& c) { c.head_width = 8; }), HasSubstr("head_width 8"));
  EXPECT_THAT(reason("starcoder2", [](C& c) { c.linear_bias = false; }), HasSubstr("only one of qkv_bias"));
  EXPECT_THAT(reason("falcon_7b", [](C& c) { c.attention_window = 4; }), HasSubstr("attention_window"));
  EXPECT_THAT(reason("llama", [](C& c) { c.vocabulary = 0; }), HasSubstr("sizes"));
  EXPECT_THAT(reason("mistral", [](C&) {}, {.base = kLlama31}), HasSubstr("no llama model"));
  EXPECT_THAT(reason("llama", [](C&) {}, {.base = "{}"}), HasSubstr("model_type"));
  EXPECT_THAT(reason("llama", [](C&) {}, {.dtype = SafetensorsDType::kI8}), HasSubstr("I8"));
}

TEST(HfConfigTest, FilesAreReadWithinBounds) {
  const TempFolder folder;
  EXPECT_EQ(ReadHfConfig(folder.path()).status().code(), absl::StatusCode::kNotFound);
  folder.Write("config.json", kGpt2);
  EXPECT_EQ(ReadHfConfig(folder.path()).value(), Parse(kGpt2));
  folder.Write("config.json", std::string(kMaxHfConfigBytes + 1, ' '));
  EXPECT_EQ(ReadHfConfig(folder.path()).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace shale::testing
