// The laws of steps of models that read features or have another loss than next-token prediction.
//
// W ranks, K micro-batches.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/layers.h"
#include "kernels/ops/activation.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

// As in tests/engine/laws_test.cc: sums in another order.
constexpr double kReordered = 2e-5, kReorderedBf16 = 1e-2;
constexpr int64_t kFeatures = 5, kClasses = 3, kWidth = 12, kValues = 4;
constexpr Initializer kRandom{Initializer::Kind::kNormal, 0.4}, kZeros{Initializer::Kind::kZeros};

ParameterId Matrix(GraphBuilder& b, GroupId group, const std::string& name, int64_t rows, int64_t columns) {
  return b.AddParameter(group, name + ".weight", {rows, columns}, kRandom);
}
ParameterId Vector(GraphBuilder& b, GroupId group, const std::string& name, int64_t size) {
  return b.AddParameter(group, name + ".bias", {size}, kZeros);
}

// Adds what a classifier has below its head, and begins the unit of the head. Returns the group of the head.
GroupId AddBelowHead(GraphBuilder& b) {
  const GroupId first = b.AddGroup("first"), head = b.AddGroup("head");
  b.BeginUnit("first", 0);
  const Tensor hidden = Linear(b, Features(b, kFeatures), Matrix(b, first, "first", kWidth, kFeatures),
                               Vector(b, first, "first", kWidth), "hidden");
  b.EndUnit(GeluTanh(b, hidden));
  b.BeginUnit("head");
  return head;
}

// Classifies the features of each sample.
absl::StatusOr<ModelGraph> BuildClassifier(const GraphOptions& given) {
  GraphOptions options = given;
  options.vocabulary = kClasses;
  GraphBuilder b(options);
  const GroupId head = AddBelowHead(b);
  LinearCrossEntropy(b, b.UnitInput(), Matrix(b, head, "head", kClasses, kWidth), Vector(b, head, "head", kClasses));
  b.EndLastUnit();
  return b.Finish();
}

// Predicts values from features, through residual blocks with GroupNorm, as the denoiser of a diffusion model does.
absl::StatusOr<ModelGraph> BuildDenoiser(const GraphOptions& options) {
  GraphBuilder b(options);
  const GroupId first = b.AddGroup("first"), last = b.AddGroup("last");
  b.BeginUnit("first");
  b.EndUnit(Linear(b, Features(b, kFeatures), Matrix(b, first, "first", kWidth, kFeatures), std::nullopt, "x"));
  for (int i = 0; i < 2; ++i) {
    const std::string name = absl::StrCat("blocks.", i);
    const GroupId group = b.AddGroup(name);
    const NormParameters norm = {
        .weight = b.AddParameter(group, name + ".norm.weight", {kWidth}, {Initializer::Kind::kOnes}),
        .bias = Vector(b, group, name + ".norm", kWidth)};
    const ParameterId up = Matrix(b, group, name + ".up", 2 * kWidth, kWidth);
    const ParameterId down = Matrix(b, group, name + ".down", kWidth, 2 * kWidth);
    b.BeginUnit(name, i);
    b.SetSublayer(Sublayer::kFeedForward);
    const Tensor x = b.UnitInput(), normal = GroupNorm(b, x, 3, norm, "norm");
    const Tensor inner = GeluTanh(b, Linear(b, normal, up, std::nullopt, "up"));
    b.EndUnit(AddResidual(b, x, Linear(b, inner, down, std::nullopt, "down"), "sum"));
  }
  b.BeginUnit("last");
  MeanSquaredError(
      b, Linear(b, b.UnitInput(), Matrix(b, last, "last", kValues, kWidth), Vector(b, last, "last", kValues), "out"));
  b.EndLastUnit();
  return b.Finish();
}

// Classifies features in blocks of the compute dtype, between which a norm, and after which the head, are in fp32.
absl::StatusOr<ModelGraph> BuildMixed(const GraphOptions& given) {
  constexpr DType kWide = DType::kFloat32;
  GraphOptions options = given;
  options.vocabulary = kClasses;
  GraphBuilder b(options);
  const GroupId first = b.AddGroup("first"), head = b.AddGroup("head");
  b.BeginUnit("first", 0);
  const Tensor x = Linear(b, Features(b, kFeatures), Matrix(b, first, "first", kWidth, kFeatures), std::nullopt, "x");
  const NormParameters norm = {
      .weight = b.AddParameter(first, "norm.weight", {kWidth}, {Initializer::Kind::kOnes}, kWide),
      .bias = b.AddParameter(first, "norm.bias", {kWidth}, kZeros, kWide)};
  const Tensor normal = Norm(b, Cast(b, x, kWide, "wide"), norm, "normal");
  b.EndUnit(GeluTanh(b, Cast(b, normal, options.compute_dtype, "narrow")));
  b.BeginUnit("head");
  const Tensor y = Cast(b, b.UnitInput(), kWide, "wide");
  LinearCrossEntropy(b, y, b.AddParameter(head, "head.weight", {kClasses, kWidth}, kRandom, kWide),
                     b.AddParameter(head, "head.bias", {kClasses}, kZeros, kWide));
  b.EndLastUnit();
  return b.Finish();
}

struct Model {
  const char* name;
  absl::StatusOr<ModelGraph> (*build)(const GraphOptions&);
  int64_t length;
};
constexpr Model kModels[] = {
    {"classifier", BuildClassifier, 1}, {"denoiser", BuildDenoiser, 3}, {"of two dtypes", BuildMixed, 1}};

Tokens Batch(const Model& model, int64_t sequences) {
  Tokens tokens = RandomTokens(sequences, model.length, kClasses, 5);
  std::mt19937_64 random(6);
  const auto draw = [&] { return static_cast<float>(static_cast<int64_t>(random() % 2001) - 1000) / 500; };
  for (int64_t i = 0; i < sequences * model.length * kFeatures; ++i) tokens.features.push_back(draw());
  if (model.build != BuildDenoiser) return tokens;
  for (int64_t i = 0; i < sequences * model.length * kValues; ++i) tokens.values.push_back(draw());
  return tokens;
}

RunOptions With(const Model& model, const Combination& c, int64_t ranks, TargetWeights weights = TargetWeights::kNone) {
  RunOptions options;
  options.build = model.build;
  options.step.strategy = c.strategy;
  options.step.accumulation = c.accumulation;
  options.step.mesh = {.shard = ranks};
  options.target_weights = weights;
  return options;
}

constexpr Combination kOne = {Strategy::kFullShard, Accumulation::kSharded};

TEST(LossLaws, EveryNumberOfRanksAndAccumulationAgreesWithOneBatchOnOneRank) {
  for (const Model& model : kModels) {
    for (const TargetWeights weights : {TargetWeights::kNone, TargetWeights::kOverWeights}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        const double tolerance = dtype == DType::kFloat32 ? kReordered : kReorderedBf16;
        // 7 sequences: K = 7, 4 and 3, and the last micro-batch lacks one on two and on three ranks.
        const Tokens tokens = Batch(model, 7);
        RunOptions options = With(model, kOne, 1, weights);
        options.dtype = dtype;
        options.micro_batch = 7;
        const RunResult one = MustRun(options, tokens);
        ASSERT_FALSE(one.losses.empty());
        for (const Combination& c : Combinations()) {
          for (const int64_t ranks : {1, 2, 3}) {
            if (ranks == 1 && c.strategy != Strategy::kFullShard) continue;
            options = With(model, c, ranks, weights);
            options.dtype = dtype;
            const std::string what = absl::StrCat(model.name, " ", ToString(c.strategy), " ", ToString(c.accumulation),
                                                  " W=", ranks, " ", ToString(dtype));
            const RunResult result = MustRun(options, tokens);
            ASSERT_FALSE(result.losses.empty()) << what;
            EXPECT_NEAR(result.losses[0], one.losses[0], tolerance * std::abs(one.losses[0])) << what;
            EXPECT_EQ(result.global_tokens, one.global_tokens) << what;
            std::string worst;
            EXPECT_LE(LargestDistance(result.gradients, one.gradients, &worst), tolerance) << what << ": " << worst;
            EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes) << what;
          }
        }
      }
    }
  }
}

TEST(LossLaws, ActivationCheckpointingChangesNoBits) {
  for (const Model& model : kModels) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      RunOptions options = With(model, kOne, 2);
      options.dtype = dtype;
      options.steps = 2;
      const Tokens tokens = Batch(model, 5);
      const RunResult none = MustRun(options, tokens);
      for (int preset = 1; preset <= static_cast<int>(CheckpointingPreset::kBlock); ++preset) {
        options.step.activations.preset = static_cast<CheckpointingPreset>(preset);
        const RunResult result = MustRun(options, tokens);
        const std::string what = absl::StrCat(model.name, " ", ToString(options.step.activations.preset));
        EXPECT_EQ(result.losses, none.losses) << what;
        EXPECT_EQ(result.gradients, none.gradients) << what;
        EXPECT_EQ(result.weights, none.weights) << what;
        EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes) << what;
      }
    }
  }
}

TEST(LossLaws, TrainingLowersTheLoss) {
  for (const Model& model : kModels) {
    RunOptions options = With(model, kOne, 2);
    options.steps = TestsEveryCombination() ? 60 : 8;
    const RunResult result = MustRun(options, Batch(model, 6));
    ASSERT_FALSE(result.losses.empty());
    EXPECT_LT(result.losses.back(), (TestsEveryCombination() ? 0.5 : 1) * result.losses.front()) << model.name;
  }
}

TEST(LossLaws, PartsInFp32KeepNoMastersAndAreTrainedInFp32) {
  RunOptions options = With(kModels[2], kOne, 2);
  options.dtype = DType::kBFloat16;
  const RunResult result = MustRun(options, Batch(kModels[2], 4));
  ASSERT_EQ(result.step.state.groups.size(), 3);
  for (const GroupState& g : result.step.state.groups) {
    const bool wide = g.layout().parameters()[0].name != "first.weight";
    EXPECT_EQ(g.own_weight.dtype, wide ? DType::kFloat32 : DType::kBFloat16);
    EXPECT_EQ(g.master.present(), !wide);
  }
  options.step.master = MasterWeights::kSplit;
  EXPECT_EQ(RunJob(options, Batch(kModels[2], 4)).status().message(),
            "parameters of two dtypes train, and a checkpoint holds them in one: norm.weight is used in f32; use "
            "precision.master MASTER_FP32");
}

// The reference multiplies matrices of two dtypes. Devices without such kernels refuse the program by name.
TEST(LossLaws, MatricesOfTwoDTypesAreComputedOrRefusedByName) {
  RunOptions options = With(kModels[0], kOne, 1);
  options.dtype = DType::kBFloat16;
  options.build = [](const GraphOptions& given) {
    GraphOptions classes = given;
    classes.vocabulary = kClasses;
    GraphBuilder b(classes);
    const GroupId all = b.AddGroup("all");
    b.BeginUnit("first");
    const Tensor x = Cast(b, Features(b, kFeatures), DType::kFloat32, "x");
    b.EndUnit(Linear(b, x, Matrix(b, all, "first", kWidth, kFeatures), std::nullopt, "y"));
    b.BeginUnit("head");
    LinearCrossEntropy(b, Cast(b, b.UnitInput(), DType::kBFloat16, "narrow"), Matrix(b, all, "head", kClasses, kWidth),
                       std::nullopt);
    b.EndLastUnit();
    return b.Finish();
  };
  const absl::Status status = RunJob(options, Batch(kModels[0], 3)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("first: MatMul: a is f32[1, 5] and b is bf16[12, 5]; device "), std::string::npos)
      << status;
  if (TestsTheCudaBackend()) return;
  options.ops = OpsKind::kReference;
  options.steps = 4;
  const RunResult result = MustRun(options, Batch(kModels[0], 3));
  ASSERT_EQ(result.losses.size(), 4);
  EXPECT_LT(result.losses[3], result.losses[0]);
}

// The loss of logits in fp32 is that of an fp32 head on the same bf16 activations. Other tests say that rounded logits
// are those of bf16.
TEST(LossLaws, LogitsInFp32AreNotRounded) {
  const Tokens tokens = Batch(kModels[0], 6);
  RunOptions options = With(kModels[0], kOne, 1);
  options.dtype = DType::kBFloat16;
  options.step.master = MasterWeights::kFloat32;
  const RunResult rounded = MustRun(options, tokens);
  options.fp32_logits = true;
  const RunResult wide = MustRun(options, tokens);
  options.build = [](const GraphOptions& given) {
    GraphOptions in_bf16 = given;
    in_bf16.fp32_logits = false;
    in_bf16.vocabulary = kClasses;
    GraphBuilder b(in_bf16);
    const GroupId head = AddBelowHead(b);
    const ParameterId weight = b.AddParameter(head, "head.weight", {kClasses, kWidth}, kRandom, DType::kFloat32);
    const ParameterId bias = b.AddParameter(head, "head.bias", {kClasses}, kZeros, DType::kFloat32);
    LinearCrossEntropy(b, Cast(b, b.UnitInput(), DType::kFloat32, "wide"), weight, bias);
    b.EndLastUnit();
    return b.Finish();
  };
  options.edit_weights = [](const std::string&, std::vector<float>& values) {
    for (float& value : values) value = ToFloat(RoundToBFloat16(value));
  };
  const RunResult head = MustRun(options, tokens);
  EXPECT_NEAR(wide.losses[0], head.losses[0], 1e-6 * head.losses[0]);
  EXPECT_GT(std::abs(rounded.losses[0] - head.losses[0]), 1e-6 * head.losses[0]);
}

// Gradients of a whole model against differences of its loss, which covers the composition of GroupNorm from norms of
// its groups. A difference over 2 h errs by the rounding of the losses, 2^-24 / h of their size, and by h^2.
TEST(LossLaws, GradientsAreTheDifferencesOfTheLoss) {
  for (const Model& model : kModels) {
    RunOptions options = With(model, kOne, 1, TargetWeights::kOverTokens);
    options.max_norm = 0;
    const Tokens tokens = Batch(model, 3);
    const RunResult at = MustRun(options, tokens);
    for (const auto& [name, gradient] : at.gradients) {
      const size_t element = gradient.size() / 2;
      const auto loss_with = [&, &name = name](float change) {
        options.edit_weights = [&](const std::string& edited, std::vector<float>& values) {
          if (edited == name) values[element] += change;
        };
        return MustRun(options, tokens).losses[0];
      };
      constexpr float kStep = 1e-2f;
      const double difference = (loss_with(kStep) - loss_with(-kStep)) / (2 * kStep);
      EXPECT_NEAR(gradient[element], difference, 1e-3 + 1e-2 * std::abs(difference)) << model.name << " " << name;
    }
  }
}

TEST(LossLaws, GroupNormWithOneGroupIsLayerNorm) {
  const auto build = [](int64_t groups) {
    return [groups](const GraphOptions& options) -> absl::StatusOr<ModelGraph> {
      GraphBuilder b(options);
      const GroupId all = b.AddGroup("all");
      const NormParameters norm = {.weight = b.AddParameter(all, "norm.weight", {kFeatures}, kRandom),
                                   .bias = Vector(b, all, "norm", kFeatures)};
      b.BeginUnit("only");
      const Tensor x = Linear(b, Features(b, kFeatures), Matrix(b, all, "x", kFeatures, kFeatures), std::nullopt, "x");
      const Tensor y = groups == 0 ? Norm(b, x, norm, "norm") : GroupNorm(b, x, groups, norm, "norm");
      MeanSquaredError(b, Linear(b, y, Matrix(b, all, "out", kValues, kFeatures), std::nullopt, "out"));
      b.EndLastUnit();
      return b.Finish();
    };
  };
  RunOptions options = With(kModels[1], kOne, 2);
  const Tokens tokens = Batch(kModels[1], 4);
  options.build = build(0);
  const RunResult layer = MustRun(options, tokens);
  options.build = build(1);
  EXPECT_EQ(MustRun(options, tokens).gradients, layer.gradients);
  options.build = build(2);
  const absl::Status status = RunJob(options, tokens).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("norm: 2 groups do not divide 5 columns"), std::string::npos) << status;
}

}  // namespace
}  // namespace shale::testing
