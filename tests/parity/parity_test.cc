// Compares the engine with PyTorch on the goldens of make_goldens.py. README.md describes every tensor and key.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/files/checkpoint/safetensors.h"
#include "tests/engine/job_harness.h"
#include "tests/parity/golden_folder.h"

namespace shale::testing {
namespace {

struct Golden {
  std::unique_ptr<SafetensorsReader> file;
  RunOptions options;
  Tokens first;
  std::vector<Tokens> curve;
};

std::vector<float> Floats(const SafetensorsReader& file, const std::string& name) { return Raw<float>(file, name); }

Golden Load(const std::string& name) {
  Golden golden;
  absl::StatusOr<SafetensorsReader> file =
      SafetensorsReader::Open(absl::StrCat("tests/parity/golden/", name, ".safetensors"));
  EXPECT_TRUE(file.ok()) << file.status();
  golden.file = std::make_unique<SafetensorsReader>(*std::move(file));
  const SafetensorsMetadata& meta = golden.file->metadata();
  int64_t S = 0, B = 0;
  EXPECT_TRUE(absl::SimpleAtoi(meta.at("sequence_length"), &S) && absl::SimpleAtoi(meta.at("batch"), &B));
  absl::StatusOr<Job> job =
      ParseJobText(absl::StrCat("model { ", meta.at("model"), " }\noptimizer { ", meta.at("optimizer"),
                                " }\ndata { path: \"none\" }\n", "batch { global_batch: ", B, " micro_batch: ", B,
                                " sequence_length: ", S, " }\nlr_schedule { steps: 1 }"),
                   name);
  EXPECT_TRUE(job.ok()) << job.status();
  golden.options.model = job->model;
  golden.options.micro_batch = B;
  golden.options.loss_chunk_tokens = 11;
  golden.options.learning_rate = job->optimizer.learning_rate;
  golden.options.max_norm = job->optimizer.max_gradient_norm;
  golden.options.step.optimizer = MakeOptimizer(job->optimizer);
  const SafetensorsReader* reader = golden.file.get();
  golden.options.edit_weights = [reader](const std::string& parameter, std::vector<float>& values) {
    const std::vector<float> initial = Floats(*reader, absl::StrCat("param/", parameter));
    ASSERT_EQ(initial.size(), values.size()) << parameter;
    values = initial;
  };
  golden.first = {B, S, Raw<int32_t>(*reader, "inputs"), Raw<int32_t>(*reader, "targets")};
  const std::vector<int32_t> inputs = Raw<int32_t>(*reader, "curve_inputs"),
                             targets = Raw<int32_t>(*reader, "curve_targets");
  for (size_t at = 0; at < inputs.size(); at += B * S) {
    golden.curve.push_back({B,
                            S,
                            {inputs.begin() + at, inputs.begin() + at + B * S},
                            {targets.begin() + at, targets.begin() + at + B * S}});
  }
  return golden;
}

double Norm(const std::vector<float>& values) {
  double sum = 0;
  for (float v : values) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return std::sqrt(sum);
}

class Parity : public ::testing::TestWithParam<std::string> {};

TEST_P(Parity, Fp32LossAndGradientsMatch) {
  const Golden golden = Load(GetParam());
  absl::StatusOr<RunResult> result = RunJob(golden.options, golden.first);
  ASSERT_TRUE(result.ok()) << result.status();
  const double loss = Raw<double>(*golden.file, "loss")[0];
  EXPECT_NEAR(result->losses[0], loss, 1e-6 * loss);
  double largest = 0;
  for (const auto& [name, gradient] : result->gradients) {
    largest = std::max(largest, Norm(Floats(*golden.file, absl::StrCat("grad/", name))));
  }
  for (const auto& [name, gradient] : result->gradients) {
    const std::vector<float> wanted = Floats(*golden.file, absl::StrCat("grad/", name));
    ASSERT_EQ(wanted.size(), gradient.size()) << name;
    const double norm = Norm(wanted);
    EXPECT_LE(Distance(gradient, wanted), 1e-5 * (norm > 1e-6 * largest ? norm : largest)) << name;
  }
}

TEST_P(Parity, TwentyStepsOfAdamWFollowTheCurve) {
  Golden golden = Load(GetParam());
  golden.options.steps = 20;
  absl::StatusOr<RunResult> result = RunJob(golden.options, golden.curve);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<double> curve = Raw<double>(*golden.file, "curve"), norms = Raw<double>(*golden.file, "curve_norm");
  for (int step = 0; step < 20; ++step) {
    EXPECT_NEAR(result->losses[step], curve[step], 1e-5 * curve[step]) << "step " << step;
    EXPECT_NEAR(result->norms[step], norms[step], 1e-4 * norms[step]) << "step " << step;
  }
}

TEST_P(Parity, ShardedOverThreeRanksTheCurveIsTheSame) {
  Golden golden = Load(GetParam());
  golden.options.steps = 20;
  golden.options.micro_batch = 1;
  golden.options.step.mesh = {.shard = 3};
  absl::StatusOr<RunResult> result = RunJob(golden.options, golden.curve);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<double> curve = Raw<double>(*golden.file, "curve");
  for (int step = 0; step < 20; ++step) EXPECT_NEAR(result->losses[step], curve[step], 1e-5 * curve[step]) << step;
}

// Bounds the error of the full gradient against fp64 by 1.5 times PyTorch's. PyTorch's autocast keeps the residual
// stream in fp32, the engine keeps it in bf16.
TEST_P(Parity, Bf16GradientErrorIsAtMostOneAndAHalfOfPyTorchs) {
  Golden golden = Load(GetParam());
  golden.options.dtype = DType::kBFloat16;
  absl::StatusOr<RunResult> result = RunJob(golden.options, golden.first);
  ASSERT_TRUE(result.ok()) << result.status();
  double ours = 0, theirs = 0;
  for (const auto& [name, gradient] : result->gradients) {
    const double error = Distance(gradient, Floats(*golden.file, absl::StrCat("grad/", name)));
    const double other = Raw<double>(*golden.file, absl::StrCat("bf16_error/", name))[0];
    ours += error * error;
    theirs += other * other;
  }
  EXPECT_LE(std::sqrt(ours), 1.5 * std::sqrt(theirs));
  RecordProperty("ratio", absl::StrCat(std::sqrt(ours / theirs)));
}

// A golden of make_float8_training_goldens.py, and how the engine computes the same.
struct Float8Recipe {
  const char* golden;
  DType gradients;
  bool blockwise;
};
// torchao's tensorwise dynamic scaling, and the blockwise scaling of DeepSeek-V3.
constexpr Float8Recipe kFloat8Recipes[] = {{"float8", DType::kFloat8E5M2, false},
                                           {"float8_blockwise", DType::kFloat8E4M3, true}};

Golden LoadFloat8(const Float8Recipe& recipe) {
  Golden golden = Load(recipe.golden);
  golden.options.dtype = DType::kBFloat16;
  golden.options.float8_gradients = recipe.gradients;
  golden.options.float8_blockwise = recipe.blockwise;
  return golden;
}

// Sums in another order may round a value in fp8 to its other neighbor; the script bounds what that does to the golden
// itself by half of the tolerance.
TEST(Float8Parity, FiftyStepsFollowTheCurve) {
  for (const Float8Recipe& recipe : kFloat8Recipes) {
    SCOPED_TRACE(recipe.golden);
    Golden golden = LoadFloat8(recipe);
    golden.options.steps = 50;
    const absl::StatusOr<RunResult> result = RunJob(golden.options, golden.curve);
    ASSERT_TRUE(result.ok()) << result.status();
    const std::vector<double> curve = Raw<double>(*golden.file, "curve");
    for (int step = 0; step < 50; ++step) {
      EXPECT_NEAR(result->losses[step], curve[step], 1e-3 * curve[step]) << "step " << step;
    }
  }
}

// The gradients tell fp8 from bf16: that of each matrix of a block is nearer to the golden's than to the one that
// PyTorch computes in bf16. Attention in bf16, which rounds in other places than PyTorch's, makes up the rest.
TEST(Float8Parity, GradientsAreNearerToFp8ThanToBf16) {
  for (const Float8Recipe& recipe : kFloat8Recipes) {
    SCOPED_TRACE(recipe.golden);
    const Golden golden = LoadFloat8(recipe);
    const absl::StatusOr<RunResult> result = RunJob(golden.options, golden.first);
    ASSERT_TRUE(result.ok()) << result.status();
    int matrices = 0;
    for (const auto& [name, gradient] : result->gradients) {
      if (!absl::StartsWith(name, "blocks.") || absl::StrContains(name, "norm")) continue;
      ++matrices;
      const double from_float8 = Distance(gradient, Floats(*golden.file, absl::StrCat("grad/", name)));
      const double from_bf16 = Distance(gradient, Floats(*golden.file, absl::StrCat("grad_bf16/", name)));
      EXPECT_LT(from_float8, 0.9 * from_bf16) << name;
    }
    EXPECT_EQ(matrices, 8);
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Parity,
                         ::testing::Values("llama", "llama3_rope", "gpt2", "qwen2", "qwen3", "mistral", "falcon_7b",
                                           "falcon_40b", "mlp"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shale::testing
