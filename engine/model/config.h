// The shapes of the models that the engine can build, as plain values with every default decided.
//
// engine/config makes them from a job file (proto/job.proto documents each field at length). A program that embeds the
// engine may fill them in itself; ValidateJob (engine/config/parse.h) checks them.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

namespace shale {

// kLayerNorm has a weight and a bias, kRmsNorm a weight alone.
enum class NormKind { kRmsNorm, kLayerNorm };

// kLearned adds a row of a [max_positions, width] table to the embedding; kRotary rotates queries and keys (RoPE).
enum class PositionKind { kLearned, kRotary };

// kSwiGlu computes silu(gate) * up from two projections of `hidden` columns each; the GELUs read one projection.
enum class Activation { kSwiGlu, kGeluTanh, kGeluErf };

// Llama-3 scaling of rotary frequencies.
struct RopeScalingConfig {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_context = 8192;  // In tokens.

  bool operator==(const RopeScalingConfig&) const = default;
};

// A decoder-only transformer: embedding, `layers` pre-norm blocks, final norm, head. The defaults are those of LLAMA.
struct DecoderConfig {
  int64_t vocabulary = 0;  // In tokens. 0: the trainer sets it to what the data needs before it builds the model.
  int64_t width = 0;       // Width of the residual stream.
  int64_t layers = 0;
  int64_t heads = 0;          // Query heads.
  int64_t kv_heads = 0;       // Key and value heads; divides heads.
  int64_t head_width = 0;     // Width of one head; heads x head_width may differ from width.
  int64_t hidden = 0;         // Inner width of the feed-forward layer.
  int64_t max_positions = 0;  // Longest sequence in tokens. A table of learned positions has this many rows.

  NormKind norm = NormKind::kRmsNorm;
  PositionKind position = PositionKind::kRotary;
  Activation activation = Activation::kSwiGlu;

  double rope_theta = 10000;  // Only kRotary reads it.
  std::optional<RopeScalingConfig> rope_scaling;
  double norm_epsilon = 1e-5;
  bool tied_head = false;        // The head uses the embedding's weight.
  bool qkv_bias = false;         // Bias on the Q, K, V projection.
  bool linear_bias = false;      // Bias on the other linear layers of a block (attention output, feed-forward).
  bool qk_norm = false;          // RMSNorm over head_width of each head's Q and K, before the rotation.
  bool parallel_block = false;   // Attention and feed-forward read the same norm and add to the same residual.
  bool parallel_norms = false;   // Only with parallel_block: attention and feed-forward have a norm each.
  int64_t attention_window = 0;  // Tokens that a query sees, itself included; 0: no window.

  // Standard deviation of the initial weights; projections into the residual stream use init_std / sqrt(2 x layers).
  double init_std = 0.02;

  bool operator==(const DecoderConfig&) const = default;
};

// A multi-layer perceptron that classifies the next token from the sequence_length tokens before it.
struct MlpConfig {
  int64_t vocabulary = 0;  // As in DecoderConfig.
  int64_t embedding = 0;   // Width of a token's embedding.
  int64_t hidden = 0;      // Width of each hidden layer.
  int64_t layers = 2;      // Hidden layers.
  double init_std = 0.02;

  bool operator==(const MlpConfig&) const = default;
};

using ModelConfig = std::variant<DecoderConfig, MlpConfig>;

// Returns the vocabulary of either kind of model, in tokens.
inline int64_t Vocabulary(const ModelConfig& model) {
  return std::visit([](const auto& config) { return config.vocabulary; }, model);
}

}  // namespace shale
