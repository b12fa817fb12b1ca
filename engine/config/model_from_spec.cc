#include <algorithm>

#include "engine/config/job_from_spec.h"
#include "engine/config/proto_enums.h"
#include "kernels/integers.h"

namespace shale {
namespace {

// Defaults of the DecoderConfig fields of the same names that depend on the family.
struct FamilyDefaults {
  NormKind norm;
  PositionKind position;
  Activation activation;
  double norm_epsilon;
  bool tied_head;
  bool qkv_bias;
  bool linear_bias;
  bool qk_norm;
  bool parallel_block;
  bool one_kv_head;
};

constexpr FamilyDefaults kLlama = {
    .norm = NormKind::kRmsNorm,
    .position = PositionKind::kRotary,
    .activation = Activation::kSwiGlu,
    .norm_epsilon = 1e-5,
};

FamilyDefaults DefaultsOf(proto::DecoderSpec::Family family) {
  FamilyDefaults defaults = kLlama;
  switch (family) {
    case proto::DecoderSpec::GPT2:
      return {.norm = NormKind::kLayerNorm,
              .position = PositionKind::kLearned,
              .activation = Activation::kGeluTanh,
              .norm_epsilon = 1e-5,
              .tied_head = true,
              .qkv_bias = true,
              .linear_bias = true};
    case proto::DecoderSpec::QWEN2:
      defaults.norm_epsilon = 1e-6;
      defaults.qkv_bias = true;
      return defaults;
    case proto::DecoderSpec::QWEN3:
      defaults.norm_epsilon = 1e-6;
      defaults.qk_norm = true;
      return defaults;
    case proto::DecoderSpec::FALCON:
      return {.norm = NormKind::kLayerNorm,
              .position = PositionKind::kRotary,
              .activation = Activation::kGeluErf,
              .norm_epsilon = 1e-5,
              .tied_head = true,
              .parallel_block = true,
              .one_kv_head = true};
    default: return defaults;  // LLAMA, MISTRAL.
  }
}

// Returns 4 x width, and 8/3 x width for SwiGLU: SwiGLU has three matrices where the others have two, so that both have
// the same number of parameters.
int64_t DefaultHidden(int64_t width, Activation activation) {
  if (activation != Activation::kSwiGlu) return 4 * width;
  constexpr int64_t kMultiple = 64;
  const int64_t hidden = (8 * width + 2) / 3;
  return RoundUp(hidden, kMultiple);
}

DecoderConfig DecoderFromSpec(const proto::DecoderSpec& spec, int64_t sequence_length) {
  const FamilyDefaults family = DefaultsOf(spec.family());
  DecoderConfig config;
  config.vocabulary = spec.vocabulary();
  config.width = spec.width();
  config.layers = spec.layers();
  config.heads = spec.heads();
  config.kv_heads = spec.has_kv_heads() ? spec.kv_heads() : family.one_kv_head ? 1 : spec.heads();
  config.head_width = spec.has_head_width() ? spec.head_width() : std::max<int64_t>(1, spec.width() / spec.heads());
  config.norm = FromSpec(spec.norm(), family.norm);
  config.position = FromSpec(spec.position(), family.position);
  config.activation = FromSpec(spec.activation(), family.activation);
  config.hidden = spec.has_hidden() ? spec.hidden() : DefaultHidden(spec.width(), config.activation);
  config.max_positions = spec.has_max_positions() ? spec.max_positions() : sequence_length;
  if (spec.has_rope_theta()) config.rope_theta = spec.rope_theta();
  if (spec.has_rope_scaling()) {
    const proto::RopeScalingSpec& from = spec.rope_scaling();
    RopeScalingConfig& to = config.rope_scaling.emplace();
    if (from.has_factor()) to.factor = from.factor();
    if (from.has_low_freq_factor()) to.low_freq_factor = from.low_freq_factor();
    if (from.has_high_freq_factor()) to.high_freq_factor = from.high_freq_factor();
    if (from.has_original_context()) to.original_context = from.original_context();
  }
  config.norm_epsilon = spec.has_norm_epsilon() ? spec.norm_epsilon() : family.norm_epsilon;
  config.tied_head = spec.has_tied_head() ? spec.tied_head() : family.tied_head;
  config.qkv_bias = spec.has_qkv_bias() ? spec.qkv_bias() : family.qkv_bias;
  config.linear_bias = spec.has_linear_bias() ? spec.linear_bias() : family.linear_bias;
  config.qk_norm = spec.has_qk_norm() ? spec.qk_norm() : family.qk_norm;
  config.parallel_block = spec.has_parallel_block() ? spec.parallel_block() : family.parallel_block;
  config.parallel_norms = spec.parallel_norms();
  config.attention_window = spec.attention_window();
  if (spec.has_init_std()) config.init_std = spec.init_std();
  return config;
}

MlpConfig MlpFromSpec(const proto::MlpSpec& spec) {
  MlpConfig config;
  config.vocabulary = spec.vocabulary();
  config.embedding = spec.embedding();
  config.hidden = spec.hidden();
  if (spec.has_layers()) config.layers = spec.layers();
  if (spec.has_init_std()) config.init_std = spec.init_std();
  return config;
}

}  // namespace

ModelConfig ModelFromSpec(const proto::ModelSpec& spec, int64_t sequence_length) {
  if (spec.has_mlp()) return MlpFromSpec(spec.mlp());
  if (spec.has_decoder()) return DecoderFromSpec(spec.decoder(), sequence_length);
  return DecoderConfig();
}

}  // namespace shale
