// A model of one's own with data of its own: a transformer encoder that restores masked tokens, after BERT (Devlin et
// al., 2018). Its attention goes in both directions, so it uses what stands before and behind a masked token.
//
// T tokens (B sentences of S), C width of the residual stream, H heads, F inner width, V vocabulary: the words and the
// mask.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/shale.h"

namespace shale::examples {

struct Sentences {
  int64_t length = 0;           // S, of every sentence.
  int64_t words = 0;            // Tokens lie below it.
  std::vector<int32_t> tokens;  // [sentences, S]
};

// Sentences in which some tokens are masked, without an end: one after the other, each time with other tokens masked.
// Which ones is a function of the seed and of the sample's number. The input at a masked position is the token V - 1.
// The targets are the tokens as they were. They have the weight 1 at masked positions and 0 at all others, so the job
// sets data.target_weights. Safe for concurrent use. REQUIRES: there is a sentence.
class MaskedSentences : public DataSource {
 public:
  // Masks one token of each sample, and each other token with the probability `share`.
  MaskedSentences(std::string name, Sentences sentences, uint64_t seed, double share = 0.15)
      : DataSource({.name = absl::StrCat(name, ", seed ", seed, ", masks ", share),
                    .sequence_length = sentences.length,
                    .vocabulary = sentences.words + 1,
                    .has_weights = true}),
        sentences_(std::move(sentences)),
        seed_(seed),
        share_(share) {}

  absl::Status Read(int64_t sample, const SampleParts& out) override {
    const int64_t length = sentences_.length, count = std::ssize(sentences_.tokens) / length;
    const int32_t mask = static_cast<int32_t>(sentences_.words);
    std::mt19937_64 random(seed_ + static_cast<uint64_t>(sample));
    const int64_t one = static_cast<int64_t>(random() % static_cast<uint64_t>(length));
    for (int64_t i = 0; i < length; ++i) {
      const bool masked = static_cast<double>(random() >> 11) * 0x1p-53 < share_ || i == one;
      out.targets[i] = sentences_.tokens[sample % count * length + i];
      out.inputs[i] = masked ? mask : out.targets[i];
      out.weights[i] = masked ? 1 : 0;
    }
    return absl::OkStatus();
  }

 private:
  const Sentences sentences_;
  const uint64_t seed_;
  const double share_;
};

struct MaskedEncoderSettings {
  int64_t width = 32;
  int64_t heads = 2;
  int64_t hidden = 64;  // Inner width of a block.
  int64_t blocks = 2;
};

namespace masked_encoder {

inline constexpr Initializer kNormal = {Initializer::Kind::kNormal, 0.1}, kOnes = {Initializer::Kind::kOnes};

// The parameters of a block.
struct Block {
  Block(GraphBuilder& b, const std::string& name, const MaskedEncoderSettings& s)
      : group(b.AddGroup(name)),
        attention_norm{.weight = b.AddParameter(group, name + ".attention_norm.weight", {s.width}, kOnes)},
        qkv(b.AddParameter(group, name + ".qkv.weight", {3 * s.width, s.width}, kNormal)),
        output(b.AddParameter(group, name + ".output.weight", {s.width, s.width}, kNormal)),
        ffn_norm{.weight = b.AddParameter(group, name + ".ffn_norm.weight", {s.width}, kOnes)},
        up(b.AddParameter(group, name + ".up.weight", {s.hidden, s.width}, kNormal)),
        down(b.AddParameter(group, name + ".down.weight", {s.width, s.hidden}, kNormal)) {}

  const GroupId group;
  const NormParameters attention_norm;
  const ParameterId qkv, output;
  const NormParameters ffn_norm;
  const ParameterId up, down;
};

inline absl::StatusOr<ModelGraph> Build(const MaskedEncoderSettings& s, const GraphOptions& options) {
  GraphBuilder b(options);
  const int64_t B = options.micro_batch, S = options.sequence_length, V = options.vocabulary, C = s.width;

  const GroupId embedding = b.AddGroup("embedding");
  const ParameterId tokens = b.AddParameter(embedding, "embedding.tokens", {V, C}, kNormal);
  const ParameterId positions = b.AddParameter(embedding, "embedding.positions", {S, C}, kNormal);
  b.BeginUnit("embedding");
  b.EndUnit(Embedding(b, tokens, positions));

  for (int64_t i = 0; i < s.blocks; ++i) {
    const std::string name = absl::StrCat("blocks.", i);
    const Block p(b, name, s);
    b.BeginUnit(name, static_cast<int>(i));
    const Tensor x = b.UnitInput();
    b.SetSublayer(Sublayer::kAttention);  // What the preset ATTENTION recomputes.
    const Tensor qkv = Linear(b, Norm(b, x, p.attention_norm, "attention_norm"), p.qkv, std::nullopt, "qkv");
    const auto heads = [&](int64_t part) {  // [T, C] -> [B, S, H, C / H]
      return SplitFirst(b, SplitLast(b, Slice(b, qkv, 1, part * C, C), s.heads), B);
    };
    const Tensor attention = BidirectionalAttention(b, heads(0), heads(1), heads(2));
    const Tensor output = Linear(b, attention, p.output, std::nullopt, "output");
    b.SetSublayer(Sublayer::kFeedForward);
    const auto [middle, normed] = AddNorm(b, output, x, p.ffn_norm, "residual", "ffn_norm");
    const Tensor inner = GeluErf(b, Linear(b, normed, p.up, std::nullopt, "up"));
    b.EndUnit(AddResidual(b, middle, Linear(b, inner, p.down, std::nullopt, "down"), "out"));
  }

  const GroupId head = b.AddGroup("words");
  const NormParameters norm = {.weight = b.AddParameter(head, "words.norm.weight", {C}, kOnes)};
  const ParameterId weight = b.AddParameter(head, "words.weight", {V, C}, kNormal);
  b.BeginUnit("words");
  LinearCrossEntropy(b, Norm(b, b.UnitInput(), norm, "norm"), weight, std::nullopt);
  b.EndLastUnit();
  return b.Finish();
}

}  // namespace masked_encoder

inline CustomModel MaskedEncoder(const MaskedEncoderSettings& s) {
  return {.name = "masked_encoder",
          .digest = absl::StrCat("width=", s.width, " heads=", s.heads, " hidden=", s.hidden, " blocks=", s.blocks),
          .build = [s](const GraphOptions& options) { return masked_encoder::Build(s, options); },
          .layers = s.blocks};
}

}  // namespace shale::examples
