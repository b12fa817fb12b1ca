// The shapes of the models that the engine can build, as plain values with every default decided, and the facts that
// follow from a shape alone. engine/compile/model/model.h builds the graphs. A program may also bring a model of its
// own (CustomModel).
//
// engine/plan/config makes them from a job file (proto/job/model.proto documents each field at length). A program that
// embeds the engine may fill them in itself; ValidateJob (engine/api/job.h) checks them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/api/model.h"

namespace shale {

// kLayerNorm has a weight and a bias, kRmsNorm has only a weight.
enum class NormKind { kRmsNorm, kLayerNorm };

// kLearned adds a row of a [max_positions, width] table to the embedding; kRotary rotates queries and keys (RoPE).
enum class PositionKind { kLearned, kRotary };

// kSwiGlu computes silu(gate) * up from two projections of `hidden` columns each, and kGeGlu computes gelu(gate) * up
// with the GELU by tanh; the GELUs read one projection.
enum class Activation { kSwiGlu, kGeluTanh, kGeluErf, kGeGlu };

// Returns whether the activation reads a gate and an up projection.
inline bool IsGated(Activation activation) {
  return activation == Activation::kSwiGlu || activation == Activation::kGeGlu;
}

// kLlama3 divides low frequencies by `factor`, and kLinear all of them.
enum class RopeScalingKind { kLlama3, kLinear };

// Scaling of rotary frequencies. Only kLlama3 reads the members after `factor`.
struct RopeScalingConfig {
  RopeScalingKind kind = RopeScalingKind::kLlama3;
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_context = 8192;  // In tokens.

  bool operator==(const RopeScalingConfig&) const = default;
};

// Low-rank adapters of a decoder (engine/compile/model/adapter.h).
struct AdapterConfig {
  int64_t rank = 0;
  double alpha = 0;
  bool rank_stabilized = false;      // Divides alpha by sqrt(rank) (rsLoRA) instead of rank.
  std::vector<std::string> targets;  // Name patterns of the layers that have an adapter (MatchesTarget).

  // Returns the factor of what the adapter adds.
  double Scale() const;

  bool operator==(const AdapterConfig&) const = default;
};

// Rotation of queries and keys.
struct RopeConfig {
  double theta = 10000;
  std::optional<RopeScalingConfig> scaling;

  bool operator==(const RopeConfig&) const = default;
};

// One block of a decoder: what may differ between its layers. DecoderConfig::Block makes it, and whoever builds, counts
// or converts a block reads it.
struct BlockConfig {
  int64_t attention_window = 0;    // Tokens that a query sees, itself included; 0: no window.
  std::optional<RopeConfig> rope;  // Without it, queries and keys are not rotated.
  double attention_scale = 1;      // Factor of the scores of attention.
  double attention_cap = 0;        // Soft cap of the scaled scores; 0: none.
  bool qk_norm = false;
  bool qkv_bias = false, linear_bias = false;
  bool parallel = false;  // Attention and feed-forward add to the same residual.
  bool ffn_norm = true;   // Feed-forward has a norm of its own before it.
  bool post_norms = false;
  Activation activation = Activation::kSwiGlu;

  bool operator==(const BlockConfig&) const = default;
};

// A decoder-only transformer: embedding, `layers` blocks (Block), final norm, head. The defaults are those of LLAMA.
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
  // Says which layers have the window: layer i has it if letter i mod the length is W, and has none if it is F (full
  // attention). Empty: all have it.
  std::string layer_pattern;
  double window_rope_theta = 0;   // Base of layers with a window, which then have no rope_scaling; 0: rope_theta.
  bool post_norms = false;        // Attention and feed-forward have a norm each after them too, before the residual.
  bool norm_adds_one = false;     // RMSNorms multiply by 1 + weight, and weights begin as zeros.
  bool scaled_embedding = false;  // Embeddings are multiplied by sqrt(width), rounded to the compute dtype.
  int64_t score_width = 0;        // Scores are divided by its root; 0: head_width.
  double attention_cap = 0;       // Soft cap of the scores: cap tanh(score / cap); 0: none.
  double logit_cap = 0;           // Soft cap of the logits; 0: none.

  // Standard deviation of the initial weights; projections into the residual stream use init_std / sqrt(2 x layers).
  double init_std = 0.02;

  std::optional<AdapterConfig> adapter;  // If it is given, only the adapters train.

  // Returns block `layer`.
  BlockConfig Block(int64_t layer) const;
  // Sets layer_pattern to the shortest one that gives each layer the same, empty if all layers are alike, and members
  // that then say nothing to their defaults. Configs of equal decoders are equal afterwards.
  void Normalize();

  // The facts of this kind of model. The functions below that take a ModelConfig say what they are.
  static constexpr absl::string_view kName = "decoder";
  bool LastTargetOnly() const { return false; }
  unsigned __int128 ParameterCount(int64_t sequence_length) const;
  double WidestRow() const;
  double AttentionFlopsPerToken(int64_t sequence_length) const;
  std::string Description() const;

  bool operator==(const DecoderConfig&) const = default;
};

// A multi-layer perceptron that classifies the next token from the sequence_length tokens before it.
struct MlpConfig {
  int64_t vocabulary = 0;  // As in DecoderConfig.
  int64_t embedding = 0;   // Width of a token's embedding.
  int64_t hidden = 0;      // Width of each hidden layer.
  int64_t layers = 2;      // Hidden layers.
  double init_std = 0.02;

  // As in DecoderConfig.
  static constexpr absl::string_view kName = "mlp";
  bool LastTargetOnly() const { return true; }
  unsigned __int128 ParameterCount(int64_t sequence_length) const;
  double WidestRow() const;
  double AttentionFlopsPerToken(int64_t sequence_length) const;
  std::string Description() const;

  bool operator==(const MlpConfig&) const = default;
};

// Every kind of ModelConfig (engine/api/model.h) has the fields vocabulary and layers. It also has the facts that the
// functions below ask for; a file of its own defines them (decoder.cc, mlp.cc, custom.cc).

// Returns the name of the kind, which is its field in the job spec (message ModelSpec).
inline absl::string_view KindName(const ModelConfig& model) {
  return std::visit([](const auto& config) { return config.kName; }, model);
}

// Returns the size of the vocabulary in tokens.
inline int64_t Vocabulary(const ModelConfig& model) {
  return std::visit([](const auto& config) { return config.vocabulary; }, model);
}

// Returns the number of layers: blocks of a decoder or of a custom model, hidden layers of an MLP.
inline int64_t Layers(const ModelConfig& model) {
  return std::visit([](const auto& config) { return config.layers; }, model);
}

// Returns whether only the last position of a sequence has a target.
inline bool LastTargetOnly(const ModelConfig& model) {
  return std::visit([](const auto& config) { return config.LastTargetOnly(); }, model);
}

// Returns the number of parameters of a model whose vocabulary is set. It may not fit 64 bits. Returns 0 for a custom
// model.
inline unsigned __int128 ParameterCount(const ModelConfig& model, int64_t sequence_length) {
  return std::visit([&](const auto& config) { return config.ParameterCount(sequence_length); }, model);
}

// Returns an upper bound on the columns of the activations that have a row for every token or every sequence. Logits
// do not count. Returns 0 for a custom model.
inline double WidestRow(const ModelConfig& model) {
  return std::visit([](const auto& config) { return config.WidestRow(); }, model);
}

// Returns the floating-point operations per token of the matmuls of attention that involve no parameters (queries by
// keys, weights by values). Counts forward and backward, as the mean over a sequence. Returns 0 for a model without
// attention, and for a custom model.
inline double AttentionFlopsPerToken(const ModelConfig& model, int64_t sequence_length) {
  return std::visit([&](const auto& config) { return config.AttentionFlopsPerToken(sequence_length); }, model);
}

// Returns the kind and the shape in words: "decoder, 12 blocks of width 768, ...".
inline std::string Description(const ModelConfig& model) {
  return std::visit([](const auto& config) { return config.Description(); }, model);
}

// Calls `use` with a default config of each kind of model that a job file can describe, in the order of ModelConfig.
template <typename Use>
void ForEachModelInFiles(const Use& use) {
  use(DecoderConfig());
  use(MlpConfig());
}

// Calls `use` with a default config of each kind of model, in the order of ModelConfig.
template <typename Use>
void ForEachModelKind(const Use& use) {
  const auto all = [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
    (use(std::variant_alternative_t<kIndices, ModelConfig>()), ...);
  };
  all(std::make_index_sequence<std::variant_size_v<ModelConfig>>());
}

}  // namespace shale
