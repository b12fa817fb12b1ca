#include "engine/config/model_spec.h"

#include "engine/config/proto_enums.h"

namespace shale {

// Leaves out a vocabulary of 0, which means "still undecided" and is not an allowed number in a spec.
void WriteSpec(const DecoderConfig& config, proto::DecoderSpec& spec) {
  if (config.vocabulary > 0) spec.set_vocabulary(config.vocabulary);
  spec.set_width(config.width);
  spec.set_layers(config.layers);
  spec.set_heads(config.heads);
  spec.set_kv_heads(config.kv_heads);
  spec.set_head_width(config.head_width);
  spec.set_hidden(config.hidden);
  spec.set_max_positions(config.max_positions);
  spec.set_norm(ToSpec<proto::DecoderSpec::Norm>(config.norm));
  spec.set_position(ToSpec<proto::DecoderSpec::Position>(config.position));
  spec.set_activation(ToSpec<proto::DecoderSpec::Activation>(config.activation));
  if (config.position == PositionKind::kRotary) spec.set_rope_theta(config.rope_theta);
  if (config.rope_scaling) {
    proto::RopeScalingSpec& scaling = *spec.mutable_rope_scaling();
    scaling.set_factor(config.rope_scaling->factor);
    scaling.set_low_freq_factor(config.rope_scaling->low_freq_factor);
    scaling.set_high_freq_factor(config.rope_scaling->high_freq_factor);
    scaling.set_original_context(config.rope_scaling->original_context);
  }
  spec.set_norm_epsilon(config.norm_epsilon);
  spec.set_tied_head(config.tied_head);
  spec.set_qkv_bias(config.qkv_bias);
  spec.set_linear_bias(config.linear_bias);
  spec.set_qk_norm(config.qk_norm);
  spec.set_parallel_block(config.parallel_block);
  spec.set_parallel_norms(config.parallel_norms);
  spec.set_attention_window(config.attention_window);
  spec.set_init_std(config.init_std);
}

void WriteSpec(const MlpConfig& config, proto::MlpSpec& spec) {
  if (config.vocabulary > 0) spec.set_vocabulary(config.vocabulary);
  spec.set_embedding(config.embedding);
  spec.set_hidden(config.hidden);
  spec.set_layers(config.layers);
  spec.set_init_std(config.init_std);
}

}  // namespace shale
