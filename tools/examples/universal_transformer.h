// A model of one's own: a transformer that applies one block several times, after "Universal Transformers" (2018). All
// blocks have the same parameters, which a job file cannot say. It predicts the next token.
//
// T tokens (B sequences of S), C width, H heads, D head width, F inner width, V vocabulary.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/shale.h"

namespace shale::examples {

struct UniversalTransformerSettings {
  int64_t width = 32;
  int64_t heads = 2;
  int64_t hidden = 48;
  int64_t steps = 3;  // How many times the block is applied.
};

namespace universal_transformer {

struct Block {
  NormParameters attention_norm, ffn_norm;
  ParameterId qkv, output, gate_up, down;
};

inline absl::StatusOr<ModelGraph> Build(const UniversalTransformerSettings& s, const GraphOptions& options) {
  constexpr Initializer kNormal = {Initializer::Kind::kNormal, 0.05}, kOnes = {Initializer::Kind::kOnes};
  GraphBuilder b(options);
  const int64_t B = options.micro_batch, V = options.vocabulary, C = s.width, H = s.heads, F = s.hidden;

  const GroupId embedding = b.AddGroup("embedding");
  const ParameterId table = b.AddParameter(embedding, "embedding.weight", {V, C}, kNormal);
  b.BeginUnit("embedding");
  b.EndUnit(Embedding(b, table, std::nullopt));

  const GroupId shared = b.AddGroup("block");
  const Block p = {.attention_norm = {.weight = b.AddParameter(shared, "block.attention_norm.weight", {C}, kOnes)},
                   .ffn_norm = {.weight = b.AddParameter(shared, "block.ffn_norm.weight", {C}, kOnes)},
                   .qkv = b.AddParameter(shared, "block.qkv.weight", {3 * C, C}, kNormal),
                   .output = b.AddParameter(shared, "block.output.weight", {C, C}, kNormal),
                   .gate_up = b.AddParameter(shared, "block.gate_up.weight", {2 * F, C}, kNormal),
                   .down = b.AddParameter(shared, "block.down.weight", {C, F}, kNormal)};
  for (int64_t step = 0; step < s.steps; ++step) {
    b.BeginUnit(absl::StrCat("steps.", step), static_cast<int>(step));
    const Tensor x = b.UnitInput();
    b.SetSublayer(Sublayer::kAttention);
    const Tensor qkv = Linear(b, Norm(b, x, p.attention_norm, "attention_norm"), p.qkv, std::nullopt, "qkv");
    const auto heads = [&](int64_t begin, int64_t count) {  // [T, count * D] -> [B, S, heads, D]
      return SplitFirst(b, SplitLast(b, Slice(b, qkv, 1, begin * C, count * C), count * H), B);
    };
    ApplyRope(b, heads(0, 2), 10000, {});
    const Tensor attention = Attention(b, heads(0, 1), heads(1, 1), heads(2, 1), /*window=*/0);
    const Tensor projected = Linear(b, attention, p.output, std::nullopt, "projected");
    b.SetSublayer(Sublayer::kFeedForward);
    const auto [middle, normed] = AddNorm(b, projected, x, p.ffn_norm, "residual", "ffn_norm");
    const Tensor inner = SwiGlu(b, Linear(b, normed, p.gate_up, std::nullopt, "gate_up"));
    b.EndUnit(AddResidual(b, middle, Linear(b, inner, p.down, std::nullopt, "down"), "out"));
  }

  const GroupId head = b.AddGroup("head");
  const ParameterId norm = b.AddParameter(head, "head.norm.weight", {C}, kOnes);
  const ParameterId weight = b.AddParameter(head, "head.weight", {V, C}, kNormal);
  b.BeginUnit("head");
  LinearCrossEntropy(b, Norm(b, b.UnitInput(), {.weight = norm}, "norm"), weight, std::nullopt);
  b.EndLastUnit();
  return b.Finish();
}

}  // namespace universal_transformer

inline CustomModel UniversalTransformer(const UniversalTransformerSettings& s) {
  return {.name = "universal_transformer",
          .digest = absl::StrCat("width=", s.width, " heads=", s.heads, " hidden=", s.hidden, " steps=", s.steps),
          .build = [s](const GraphOptions& options) { return universal_transformer::Build(s, options); },
          .layers = s.steps};
}

}  // namespace shale::examples
