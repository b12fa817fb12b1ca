// The models of the engine. Each function builds a graph from a configuration with the public GraphBuilder
// (engine/api/graph_builder.h).
//
// To add a model, write one more function like these: declare groups and parameters, build the units in order, end with
// LinearCrossEntropy or MeanSquaredError. Every ModelGraph can be trained. Jobs reach it through BuildModel. A program
// that embeds the engine gives its function as a CustomModel instead.
#pragma once

#include <variant>

#include "absl/status/statusor.h"
#include "engine/api/graph_builder.h"
#include "engine/compile/model/config.h"

namespace shale {

// Builds a decoder. Units: embedding, blocks.0 ..., head. config.vocabulary must be set. Parameter names:
// embedding.weight [V, C], embedding.positions; per block attention_norm, attention.qkv (rows: query heads, key heads,
// value heads), attention.q_norm, attention.k_norm, attention.output, attention_post_norm, ffn_norm, ffn.gate_up (gate
// rows first) or ffn.up, ffn.down, ffn_post_norm; then final_norm, head. All but the first two end in .weight or, where
// there is a bias, .bias.
absl::StatusOr<ModelGraph> BuildDecoder(const DecoderConfig& config, GraphOptions options,
                                        Float8Sources sources = Float8Sources::kUsed);

// Builds an MLP that concatenates the embeddings of a sequence's S tokens and classifies the token that follows.
// Parameters: embedding.weight, hidden.{i}.weight/.bias, head.weight/.bias.
absl::StatusOr<ModelGraph> BuildMlp(const MlpConfig& config, GraphOptions options);

// Calls the function of a custom model and checks that the graph is one for `options`. Returns FailedPrecondition if
// there is no function, because the job was read from a file.
absl::StatusOr<ModelGraph> BuildCustom(const CustomModel& model, GraphOptions options);

// Builds a model of any kind. In this function and the three above, the vocabulary in `config` overrides the one in
// `options`. Only decoders look at `sources`.
inline absl::StatusOr<ModelGraph> BuildModel(const ModelConfig& config, const GraphOptions& options,
                                             Float8Sources sources = Float8Sources::kUsed) {
  struct Builder {
    absl::StatusOr<ModelGraph> operator()(const DecoderConfig& c) const { return BuildDecoder(c, options, sources); }
    absl::StatusOr<ModelGraph> operator()(const MlpConfig& c) const { return BuildMlp(c, options); }
    absl::StatusOr<ModelGraph> operator()(const CustomModel& c) const { return BuildCustom(c, options); }
    const GraphOptions& options;
    const Float8Sources sources;
  };
  return std::visit(Builder{options, sources}, config);
}

}  // namespace shale
