// The models of the engine, built from their configuration with the public GraphBuilder (engine/graph/builder.h).
//
// A model of your own is one more function like these: declare groups and parameters, run through the units, end with
// LinearCrossEntropy. Anything that returns a ModelGraph can be trained.
#pragma once

#include "absl/status/statusor.h"
#include "engine/graph/builder.h"
#include "engine/model/config.h"

namespace shale {

// GPT-2, Llama 2/3, Qwen 2/3, Mistral and Falcon shapes. Units: embedding, blocks.0 ..., head. The vocabulary must be
// decided. Parameter names: embedding.weight [V, C], embedding.positions, and per block attention_norm, attention.qkv
// (rows: query heads, key heads, value heads), attention.q_norm, attention.k_norm, attention.output, ffn_norm,
// ffn.gate_up (gate rows first) or ffn.up, ffn.down; then final_norm, head; each with .weight and where used .bias.
absl::StatusOr<ModelGraph> BuildDecoder(const DecoderConfig& config, GraphOptions options);

// Embeds the S tokens of a sequence side by side and classifies the token that follows. Parameters: embedding.weight,
// hidden.{i}.weight/.bias, head.weight/.bias.
absl::StatusOr<ModelGraph> BuildMlp(const MlpConfig& config, GraphOptions options);

absl::StatusOr<ModelGraph> BuildModel(const ModelConfig& config, const GraphOptions& options);

}  // namespace shale
