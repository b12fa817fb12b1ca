// The laws of training steps for the example models of tools/examples, which programs bring themselves: how a job is
// divided does not change what it computes, recomputation and offload change no bit, and the measured peak is the
// planned one. This is a library; each test links the backend on which it checks them.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/tested_backend.h"
#include "tools/examples/diffusion_mlp.h"
#include "tools/examples/masked_encoder.h"
#include "tools/examples/table_classifier.h"
#include "tools/examples/universal_transformer.h"

namespace shale::testing {
namespace {

constexpr int64_t kVocabulary = 19, kLength = 7, kCells = 5;

// Sizes that are multiples of nothing.
CustomModel Classifier() {
  return examples::TableClassifier({.cells = kCells, .width = 14, .hidden = 22, .blocks = 3});
}
CustomModel Transformer() {
  return examples::UniversalTransformer({.width = 12, .heads = 3, .hidden = 20, .steps = 3});
}
CustomModel Encoder() { return examples::MaskedEncoder({.width = 12, .heads = 3, .hidden = 20, .blocks = 3}); }
CustomModel Denoiser() { return examples::DiffusionMlp({.width = 15, .hidden = 22, .groups = 3, .blocks = 3}); }

Tokens TokensOnly(int64_t sequences) { return RandomTokens(sequences, kLength, kVocabulary, 5, /*masks=*/false); }
Tokens FeaturesAndClasses(int64_t sequences) {
  Tokens data = TokensOnly(sequences);  // The model reads only the targets.
  for (int64_t i = 0; i < sequences * kLength * kCells; ++i) {
    data.features.push_back(static_cast<float>(i * i % 23) / 8 - 1.5f);
  }
  return data;
}
Tokens FeaturesAndValues(int64_t sequences) {
  using examples::NoisyPoints;
  Tokens data = TokensOnly(sequences);  // The model does not read them.
  const int64_t features = kLength * NoisyPoints::kFeatures, values = kLength * NoisyPoints::kValues;
  data.features.resize(sequences * features);
  data.values.resize(sequences * values);
  NoisyPoints points(5, kLength);
  for (int64_t i = 0; i < sequences; ++i) {
    const absl::Status read =
        points.Read(i, {.features = absl::MakeSpan(data.features).subspan(i * features, features),
                        .target_values = absl::MakeSpan(data.values).subspan(i * values, values)});
    EXPECT_TRUE(read.ok()) << read;
  }
  return data;
}
Tokens MaskedSentences(int64_t sequences) {
  Tokens data = TokensOnly(sequences);
  examples::Sentences sentences = {.length = kLength, .words = kVocabulary - 1};
  for (const int32_t token : data.inputs) sentences.tokens.push_back(token % static_cast<int32_t>(sentences.words));
  examples::MaskedSentences masked("random", sentences, /*seed=*/5, /*share=*/0.3);
  for (int64_t i = 0; i < sequences; ++i) {
    const auto part = [&](auto& all) { return absl::MakeSpan(all).subspan(i * kLength, kLength); };
    const absl::Status read =
        masked.Read(i, {.inputs = part(data.inputs), .targets = part(data.targets), .weights = part(data.weights)});
    EXPECT_TRUE(read.ok()) << read;
  }
  return data;
}

struct Example {
  const char* name;
  CustomModel (*model)();
  Tokens (*data)(int64_t sequences);
  int64_t vocabulary;
  const char* activation;  // A pattern of one in every block.
  TargetWeights weights = TargetWeights::kNone;
};
constexpr Example kExamples[] = {
    {"TableClassifier", Classifier, FeaturesAndClasses, kVocabulary, "blocks.*.up"},
    {"UniversalTransformer", Transformer, TokensOnly, kVocabulary, "steps.*.qkv"},
    {"DiffusionMlp", Denoiser, FeaturesAndValues, 0, "blocks.*.sum"},
    {"MaskedEncoder", Encoder, MaskedSentences, kVocabulary, "blocks.*.qkv", TargetWeights::kOverWeights},
};

class ExampleLaws : public ::testing::TestWithParam<std::tuple<Example, DType>> {
 protected:
  RunOptions Options(int64_t ranks, int64_t micro_batch) const {
    const auto& [example, dtype] = GetParam();
    CustomModel model = example.model();
    model.vocabulary = example.vocabulary;
    RunOptions options;
    options.model = model;
    options.dtype = dtype;
    options.micro_batch = micro_batch;
    options.target_weights = example.weights;
    options.step.mesh = {.shard = ranks};
    return options;
  }
  RunResult MustRun(const RunOptions& options, int64_t sequences) const {
    absl::StatusOr<RunResult> result = RunJob(options, std::get<Example>(GetParam()).data(sequences));
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    EXPECT_EQ(result->measured_peak_bytes, result->plan.peak_bytes);
    return *std::move(result);
  }
};

TEST_P(ExampleLaws, EveryStrategyAndAccumulationAgreesWithOneRankAndOneBatch) {
  // See kReordered and kReorderedBf16 in laws_test.cc.
  const double tolerance = std::get<DType>(GetParam()) == DType::kFloat32 ? 2e-5 : 1e-2;
  const RunResult one = MustRun(Options(1, 7), 7);
  ASSERT_FALSE(one.losses.empty());
  for (const Combination& c : Combinations()) {
    RunOptions options = Options(3, 1);
    options.step.strategy = c.strategy;
    options.step.accumulation = c.accumulation;
    const RunResult run = MustRun(options, 7);
    const std::string name = absl::StrCat(ToString(c.strategy), " ", ToString(c.accumulation));
    ASSERT_FALSE(run.losses.empty()) << name;
    EXPECT_NEAR(run.losses[0], one.losses[0], tolerance * std::abs(one.losses[0])) << name;
    EXPECT_EQ(run.global_tokens, one.global_tokens) << name;
    std::string worst;
    EXPECT_LE(LargestDistance(run.gradients, one.gradients, &worst), tolerance) << name << ": " << worst;
  }
}

TEST_P(ExampleLaws, RecomputationAndOffloadChangeNoBits) {
  using enum CheckpointingPreset;
  RunOptions options = Options(2, 1);
  options.steps = 2;
  const RunResult none = MustRun(options, 4);
  ASSERT_FALSE(none.losses.empty());
  for (const ActivationOptions& activations :
       {ActivationOptions{.preset = kCheap}, ActivationOptions{.preset = kFeedForward},
        ActivationOptions{.preset = kBlock}, ActivationOptions{.preset = kBlock, .segment_blocks = 2},
        ActivationOptions{.offload = {"*"}},
        ActivationOptions{.patterns = {std::get<Example>(GetParam()).activation, "*norm*"}}}) {
    options.step.activations = activations;
    const RunResult run = MustRun(options, 4);
    const std::string name = absl::StrCat(ToString(activations.preset), " ", activations.segment_blocks);
    EXPECT_EQ(run.losses, none.losses) << name;
    EXPECT_EQ(run.gradients, none.gradients) << name;
    EXPECT_EQ(run.weights, none.weights) << name;
  }
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Example, DType>>& test) {
  const auto& [example, dtype] = test.param;
  return absl::StrCat(example.name, dtype == DType::kFloat32 ? "Fp32" : "Bf16");
}

INSTANTIATE_TEST_SUITE_P(Models, ExampleLaws,
                         ::testing::Combine(::testing::ValuesIn(kExamples),
                                            ::testing::Values(DType::kFloat32, DType::kBFloat16)),
                         NameOf);

}  // namespace
}  // namespace shale::testing
