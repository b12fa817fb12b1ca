#include "tests/engine/example_models.h"

#include "gtest/gtest.h"
#include "tools/examples/diffusion_mlp.h"
#include "tools/examples/masked_encoder.h"
#include "tools/examples/table_classifier.h"
#include "tools/examples/universal_transformer.h"

namespace shale::testing {
namespace {

constexpr int64_t kVocabulary = 19, kCells = 5;

CustomModel Classifier(int64_t blocks) {
  return examples::TableClassifier({.cells = kCells, .width = 14, .hidden = 22, .blocks = blocks});
}
CustomModel Transformer(int64_t blocks) {
  return examples::UniversalTransformer({.width = 12, .heads = 3, .hidden = 20, .steps = blocks});
}
CustomModel Denoiser(int64_t blocks) {
  return examples::DiffusionMlp({.width = 15, .hidden = 22, .groups = 3, .blocks = blocks});
}
CustomModel Encoder(int64_t blocks) {
  return examples::MaskedEncoder({.width = 12, .heads = 3, .hidden = 20, .blocks = blocks});
}
// A matrix with an inner width of 144 has a whole block of 128 x 128 numbers and a smaller one.
CustomModel Float8Classifier(int64_t blocks) {
  return examples::TableClassifier({.cells = kCells, .width = 32, .hidden = 144, .blocks = blocks});
}
CustomModel Float8Transformer(int64_t blocks) {
  return examples::UniversalTransformer({.width = 32, .heads = 2, .hidden = 48, .steps = blocks});
}
CustomModel Float8Encoder(int64_t blocks) {
  return examples::MaskedEncoder({.width = 32, .heads = 2, .hidden = 144, .blocks = blocks});
}

Tokens TokensOnly(int64_t sequences, int64_t length) {
  return RandomTokens(sequences, length, kVocabulary, 5, /*masks=*/false);
}
Tokens FeaturesAndClasses(int64_t sequences, int64_t length) {
  Tokens data = TokensOnly(sequences, length);  // The model reads only the targets.
  for (int64_t i = 0; i < sequences * length * kCells; ++i) {
    data.features.push_back(static_cast<float>(i * i % 23) / 8 - 1.5f);
  }
  return data;
}
Tokens FeaturesAndValues(int64_t sequences, int64_t length) {
  using examples::NoisyPoints;
  Tokens data = TokensOnly(sequences, length);  // The model does not read them.
  const int64_t features = length * NoisyPoints::kFeatures, values = length * NoisyPoints::kValues;
  data.features.resize(sequences * features);
  data.values.resize(sequences * values);
  NoisyPoints points(5, length);
  for (int64_t i = 0; i < sequences; ++i) {
    const absl::Status read =
        points.Read(i, {.features = absl::MakeSpan(data.features).subspan(i * features, features),
                        .target_values = absl::MakeSpan(data.values).subspan(i * values, values)});
    EXPECT_TRUE(read.ok()) << read;
  }
  return data;
}
Tokens MaskedSentences(int64_t sequences, int64_t length) {
  Tokens data = TokensOnly(sequences, length);
  examples::Sentences sentences = {.length = length, .words = kVocabulary - 1};
  for (const int32_t token : data.inputs) sentences.tokens.push_back(token % static_cast<int32_t>(sentences.words));
  examples::MaskedSentences masked("random", sentences, /*seed=*/5, /*share=*/0.3);
  for (int64_t i = 0; i < sequences; ++i) {
    const auto part = [&](auto& all) { return absl::MakeSpan(all).subspan(i * length, length); };
    const absl::Status read =
        masked.Read(i, {.inputs = part(data.inputs), .targets = part(data.targets), .weights = part(data.weights)});
    EXPECT_TRUE(read.ok()) << read;
  }
  return data;
}

constexpr Example kExamples[] = {
    {"TableClassifier", Classifier, Float8Classifier, FeaturesAndClasses, kVocabulary, "blocks.*.up"},
    {"UniversalTransformer", Transformer, Float8Transformer, TokensOnly, kVocabulary, "steps.*.qkv"},
    {"DiffusionMlp", Denoiser, nullptr, FeaturesAndValues, 0, "blocks.*.sum"},
    {"MaskedEncoder", Encoder, Float8Encoder, MaskedSentences, kVocabulary, "blocks.*.qkv",
     TargetWeights::kOverWeights},
};

}  // namespace

absl::Span<const Example> Examples() { return kExamples; }

}  // namespace shale::testing
