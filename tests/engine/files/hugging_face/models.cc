#include "tests/engine/files/hugging_face/models.h"

#include "kernels/check.h"

namespace shale::testing {
namespace {

DecoderConfig Llama() {
  DecoderConfig c;
  c.vocabulary = 37;
  c.width = 12;
  c.layers = 2;
  c.heads = 6;
  c.kv_heads = 3;
  c.head_width = 4;
  c.hidden = 19;
  c.max_positions = 33;
  return c;
}

DecoderConfig Gpt2() {
  DecoderConfig c = Llama();
  c.norm = NormKind::kLayerNorm;
  c.position = PositionKind::kLearned;
  c.activation = Activation::kGeluTanh;
  c.heads = c.kv_heads = 3;
  c.qkv_bias = c.linear_bias = c.tied_head = true;
  return c;
}

DecoderConfig Gemma2() {
  DecoderConfig c = Llama();
  c.activation = Activation::kGeGlu;
  c.tied_head = c.post_norms = c.norm_adds_one = c.scaled_embedding = true;
  c.attention_window = 7;
  c.layer_pattern = "WF";
  c.score_width = 6;
  c.attention_cap = 50;
  c.logit_cap = 30;
  return c;
}

DecoderConfig Gemma3() {
  DecoderConfig c = Gemma2();
  c.qk_norm = true;
  c.layer_pattern = "FW";
  c.rope_theta = 1e6;
  c.rope_scaling = RopeScalingConfig{.kind = RopeScalingKind::kLinear, .factor = 8};
  c.window_rope_theta = 10000;
  c.attention_cap = c.logit_cap = 0;
  return c;
}

DecoderConfig Falcon(int64_t kv_heads) {
  DecoderConfig c = Llama();
  c.norm = NormKind::kLayerNorm;
  c.activation = Activation::kGeluErf;
  c.heads = 6;
  c.head_width = 2;
  c.kv_heads = kv_heads;
  c.parallel_block = c.tied_head = true;
  return c;
}

DecoderConfig Starcoder2() {
  DecoderConfig c = Llama();
  c.norm = NormKind::kLayerNorm;
  c.activation = Activation::kGeluTanh;
  c.head_width = 2;
  c.qkv_bias = c.linear_bias = c.tied_head = true;
  return c;
}

// Without the window these blocks would be Falcon's.
DecoderConfig Starcoder2Window() {
  DecoderConfig c = Starcoder2();
  c.kv_heads = 6;
  c.head_width = 4;
  c.attention_window = 7;
  c.activation = Activation::kGeluErf;
  c.qkv_bias = c.linear_bias = c.tied_head = false;
  return c;
}

template <typename Edit>
DecoderConfig Edited(DecoderConfig config, Edit edit) {
  edit(config);
  return config;
}

}  // namespace

std::vector<NamedModel> HfModels() {
  using C = DecoderConfig;
  return {
      {"llama", Llama()},
      {"llama_tied_bias", Edited(Llama(), [](C& c) { c.tied_head = c.qkv_bias = c.linear_bias = true; })},
      {"llama3", Edited(Llama(),
                        [](C& c) {
                          c.rope_scaling.emplace();
                          c.rope_theta = 500000;
                        })},
      {"odd_width", Edited(Llama(), [](C& c) { c.width = 11; })},
      {"mistral", Edited(Llama(), [](C& c) { c.attention_window = 7; })},
      {"qwen2", Edited(Llama(), [](C& c) { c.qkv_bias = c.tied_head = true; })},
      {"qwen2_window", Edited(Llama(),
                              [](C& c) {
                                c.qkv_bias = true;
                                c.attention_window = 7;
                              })},
      {"qwen3", Edited(Llama(), [](C& c) { c.qk_norm = true; })},
      {"qwen3_some_windows", Edited(Llama(),
                                    [](C& c) {
                                      c.qk_norm = true;
                                      c.attention_window = 7;
                                      c.layer_pattern = "FW";
                                    })},
      {"gemma2", Gemma2()},
      {"gemma2_no_caps", Edited(Gemma2(), [](C& c) { c.attention_cap = c.logit_cap = 0; })},
      {"gemma3", Gemma3()},
      {"gemma3_all_windows", Edited(Gemma3(), [](C& c) { c.layer_pattern = ""; })},
      {"gemma3_no_windows", Edited(Gemma3(),
                                   [](C& c) {
                                     c.layer_pattern = "";
                                     c.attention_window = 0;
                                     c.window_rope_theta = 0;
                                   })},
      {"gpt2", Gpt2()},
      {"gpt2_untied_erf", Edited(Gpt2(),
                                 [](C& c) {
                                   c.tied_head = false;
                                   c.activation = Activation::kGeluErf;
                                 })},
      {"falcon_7b", Falcon(1)},
      {"falcon_40b", Edited(Falcon(2), [](C& c) { c.parallel_norms = true; })},
      {"falcon_40b_one_kv", Edited(Falcon(1), [](C& c) { c.parallel_norms = true; })},
      {"falcon_11b", Edited(Falcon(3), [](C& c) { c.tied_head = false; })},
      {"falcon_multi_head", Edited(Falcon(6), [](C& c) { c.qkv_bias = c.linear_bias = true; })},
      {"falcon_sequential", Edited(Falcon(6),
                                   [](C& c) {
                                     c.parallel_block = false;
                                     c.activation = Activation::kGeluTanh;
                                   })},
      {"falcon_sequential_one_kv", Edited(Falcon(1), [](C& c) { c.parallel_block = false; })},
      {"starcoder2", Starcoder2()},
      {"starcoder2_window", Starcoder2Window()},
  };
}

DecoderConfig HfModel(absl::string_view name) {
  for (const NamedModel& model : HfModels()) {
    if (model.name == name) return model.config;
  }
  SHALE_CHECK(false) << "no model " << std::string(name);
  return {};
}

float TestWeight(absl::string_view parameter, int64_t i) {
  uint32_t hash = 2166136261u;  // FNV-1a of the name, then of the index.
  for (const char c : parameter) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  hash = (hash ^ static_cast<uint32_t>(i)) * 16777619u;
  hash ^= hash >> 15;
  return (static_cast<float>(hash % (1 << 24)) - (1 << 23)) * 0x1p-22f;
}

absl::Status ReadTestWeights(absl::string_view parameter, int64_t begin, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = TestWeight(parameter, begin + static_cast<int64_t>(i));
  return absl::OkStatus();
}

absl::Status ExportTestModel(const DecoderConfig& config, const std::string& folder, HfExportOptions options) {
  return ExportHf(config, options, ReadTestWeights, folder);
}

}  // namespace shale::testing
