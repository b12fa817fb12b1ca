// The laws of gradients that leave a rank in bf16: what is summed, how exact it is, and what changes no bits. See
// [Note: gradients that leave in bf16] in engine/compile/step/reduce.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/compile/program/live_bytes.h"
#include "kernels/counter_random.h"
#include "kernels/dtype.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

using Gradients = std::map<std::string, std::vector<float>>;

RunOptions Narrow(Strategy strategy, Accumulation accumulation, const Mesh& mesh) {
  RunOptions options;
  DecoderConfig tied = SmallDecoder();
  tied.tied_head = true;  // Two units write gradients of one group.
  options.model = tied;
  options.step.strategy = strategy;
  options.step.accumulation = accumulation;
  options.step.mesh = mesh;
  options.step.reduce = DType::kBFloat16;
  return options;
}

// Lets matmuls compute a row of a matrix as if there were no others: our kernels on CPUs do, and cuBLASLt need not
// (RoundInBackward).
void ComputeRowsAlone(RunOptions& options) {
  options.cpu_matmuls = CpuMatMuls::kPacked;
  if (TestsTheCudaBackend()) options.ops = OpsKind::kReference;
}

// Returns the most bytes of unsharded gradients at a time.
double MostUnsharded(const StepProgram& program) {
  int64_t most = 0;
  VisitLiveBytes(program, [&](InstructionId, const LiveBytes& live) {
    most = std::max(most, live.by_category[static_cast<int>(BufferCategory::kUnshardedGradients)]);
  });
  return static_cast<double>(most);
}

Tokens SomeTokens(int64_t sequences, uint64_t seed) {
  return RandomTokens(sequences, 11, SmallDecoder().vocabulary, seed, /*masks=*/false);
}

// Returns what the ranks' gradients are in fp32: those of a run in which the other ranks' targets are masked. Such a
// run divides by a half of the targets, and halves are exact.
std::vector<Gradients> GradientsOfTwoRanks(RunOptions options, const Tokens& tokens) {
  options.step.reduce = DType::kFloat32;
  std::vector<Gradients> gradients;
  for (int64_t rank = 0; rank < 2; ++rank) {
    Tokens masked = tokens;
    for (int64_t i = 0; i < tokens.length; ++i) masked.targets[(1 - rank) * tokens.length + i] = -1;
    gradients.push_back(MustRun(options, masked).gradients);
    for (auto& [name, values] : gradients.back()) {
      for (float& x : values) x /= 2;
    }
  }
  return gradients;
}

// Expects the formula, to the bit: each rank rounds its own gradient with bits of its own, and the sum is in fp32.
void ExpectSumOfRoundedGradients(RunOptions options) {
  options.model = SmallDecoder();
  options.step.seed = 77;
  const Tokens tokens = SomeTokens(2, 41);
  const RunResult result = MustRun(options, tokens);
  const std::vector<Gradients> of_ranks = GradientsOfTwoRanks(options, tokens);
  for (size_t g = 0; g < result.step.state.groups.size(); ++g) {
    const ShardLayout& layout = result.step.state.groups[g].layout();
    const RoundingStream stream = {
        .seed = 77, .number = 1, .group = static_cast<int32_t>(g), .tensor = SentGradientStream(0)};
    for (const ShardLayout::PlacedParameter& parameter : layout.parameters()) {
      std::vector<float> sum(parameter.elements);
      for (int64_t rank = 0; rank < 2; ++rank) {
        for (int64_t i = 0; i < parameter.elements; ++i) {
          const int64_t element = rank * layout.padded_elements() + parameter.offset_elements + i;
          const uint32_t half = stream.At(element / kRandomBlock).Half(element % kRandomBlock);
          sum[i] += ToFloat(
              BFloat16{RoundStochastically(std::bit_cast<uint32_t>(of_ranks[rank].at(parameter.name)[i]), half)});
        }
      }
      EXPECT_EQ(result.gradients.at(parameter.name), sum) << parameter.name;
    }
  }
}

TEST(ReduceLaws, TheSumIsThatOfTheRoundedGradientsOfTheRanks) {
  for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    ExpectSumOfRoundedGradients(Narrow(Strategy::kFullShard, accumulation, {.shard = 2}));
  }
}

TEST(ReduceLaws, MatricesThatAreRoundedInPiecesHaveTheSameBits) {
  RunOptions options = Narrow(Strategy::kFullShard, Accumulation::kSharded, {.shard = 2});
  ComputeRowsAlone(options);
  options.step.sent_part_bytes = 1;
  ExpectSumOfRoundedGradients(options);
}

// Each of the K W parts errs by less than a bf16 step, 2^-7 of itself, with either sign. Parts are smaller than their
// sum, or not much larger, so the distance is below K 2^-7.
TEST(ReduceLaws, SumsAreThoseOfFp32ButForTheirRounding) {
  constexpr int64_t kMicroBatches = 3;
  std::vector<Mesh> meshes = {{1, 2}, {2, 2}};
  if (TestsEveryCombination()) meshes.insert(meshes.end(), {{1, 3}, {3, 2}, {2, 3}});
  for (const Mesh& mesh : meshes) {
    const Tokens tokens = RandomTokens(mesh.ranks() * kMicroBatches, 11, SmallDecoder().vocabulary, 42);
    for (const auto& [strategy, accumulation] : Combinations()) {
      if (strategy == Strategy::kDdp) continue;
      RunOptions options = Narrow(strategy, accumulation, mesh);
      options.step.sent_part_bytes = 1;
      const std::string what =
          absl::StrCat(ToString(strategy), " ", ToString(accumulation), " R=", mesh.replicate, " S=", mesh.shard);
      const RunResult narrow = MustRun(options, tokens);
      options.step.reduce = DType::kFloat32;
      const RunResult wide = MustRun(options, tokens);
      std::string worst;
      EXPECT_LE(LargestDistance(narrow.gradients, wide.gradients, &worst), kMicroBatches * 0x1p-7) << what << worst;
      EXPECT_NE(narrow.gradients, wide.gradients) << what;
      EXPECT_EQ(narrow.losses[0], wide.losses[0]) << what;
      EXPECT_EQ(narrow.measured_peak_bytes, narrow.plan.peak_bytes) << what;
    }
  }
}

TEST(ReduceLaws, OneRankSendsNothingAndRoundsNothing) {
  const Tokens tokens = SomeTokens(3, 43);
  RunOptions options = Narrow(Strategy::kFullShard, Accumulation::kSharded, {});
  const RunResult narrow = MustRun(options, tokens);
  options.step.reduce = DType::kFloat32;
  const RunResult wide = MustRun(options, tokens);
  EXPECT_EQ(narrow.gradients, wide.gradients);
  EXPECT_EQ(narrow.weights, wide.weights);
}

TEST(ReduceLaws, ThreadsAndTheTimeOfUpdatesChangeNoBits) {
  const Tokens tokens = SomeTokens(6, 44);
  for (const DType shards : {DType::kFloat32, DType::kBFloat16}) {
    for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
      RunOptions options = Narrow(Strategy::kFullShard, accumulation, {.shard = 2});
      options.step.gradient_shards = shards;
      options.max_norm = 0;  // The parts of the norm are summed in another order.
      options.steps = 2;
      const RunResult plain = MustRun(options, tokens);
      const auto expect_same = [&](const std::string& what) {
        const RunResult other = MustRun(options, tokens);
        EXPECT_EQ(other.gradients, plain.gradients) << what;
        EXPECT_EQ(other.weights, plain.weights) << what;
        EXPECT_EQ(other.measured_peak_bytes, other.plan.peak_bytes) << what;
      };
      options.threads = 3;
      expect_same("threads");
      options.step.update = UpdateTime::kInBackward;
      expect_same("update in backward");
      options.step.seed = 2;
      EXPECT_NE(MustRun(options, tokens).gradients, plain.gradients);
    }
  }
}

TEST(ReduceLaws, PartsChangeNoBits) {
  const Tokens tokens = SomeTokens(6, 44);
  for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    RunOptions options = Narrow(Strategy::kFullShard, accumulation, {.shard = 2});
    ComputeRowsAlone(options);
    const RunResult plain = MustRun(options, tokens);
    options.step.sent_part_bytes = 1;
    const RunResult parts = MustRun(options, tokens);
    EXPECT_EQ(parts.gradients, plain.gradients) << ToString(accumulation);
    EXPECT_EQ(parts.weights, plain.weights) << ToString(accumulation);
    EXPECT_EQ(parts.measured_peak_bytes, parts.plan.peak_bytes) << ToString(accumulation);
  }
}

// The error of one rounding is 0 on average and at most a bf16 step d = 2^-7 |x|, so its variance is at most d^2 / 4,
// and roundings are independent. The mean over S seeds of an element's error then has a variance of at most
// 2^-16 sum of x_r^2 / S, and the sum of its squares over n elements exceeds four times its expectation with a
// probability below exp(-n / 4) or so: n is above 100 here.
TEST(ReduceLaws, TheMeanOverSeedsIsExact) {
  constexpr int kSeeds = 40;
  RunOptions options = Narrow(Strategy::kFullShard, Accumulation::kSharded, {.shard = 2});
  options.model = SmallDecoder();
  const Tokens tokens = SomeTokens(2, 45);
  const std::vector<Gradients> of_ranks = GradientsOfTwoRanks(options, tokens);
  std::map<std::string, std::vector<double>> mean;
  for (int seed = 0; seed < kSeeds; ++seed) {
    options.step.seed = 1000 + seed;
    for (const auto& [name, values] : MustRun(options, tokens).gradients) {
      mean[name].resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) mean[name][i] += values[i] / double{kSeeds};
    }
  }
  double squared_error = 0, bound = 0;
  for (const auto& [name, values] : mean) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double a = of_ranks[0].at(name)[i], b = of_ranks[1].at(name)[i];
      squared_error += std::pow(values[i] - (a + b), 2);
      bound += 0x1p-16 * (a * a + b * b) / kSeeds;
    }
  }
  EXPECT_LE(squared_error, 4 * bound);
  EXPECT_GT(squared_error, 0);
}

// Each rank sends half the bytes. The gradients of two units are in memory at a time, and take half the bytes too. Two
// buffers come on top: one receives an eighth of what is sent, and one holds what is not rounded yet, an eighth of a
// gradient in fp32, or somewhat more in a small model.
TEST(ReduceLaws, HalfTheBytesAreSentAndLessMemoryIsNeeded) {
  RunOptions options = Narrow(Strategy::kFullShard, Accumulation::kSharded, {.shard = 2});
  DecoderConfig model = SmallDecoder();
  model.layers = 8;
  options.model = model;
  options.reads_gradients = false;
  options.step.sent_part_bytes = 1;
  const Tokens tokens = SomeTokens(4, 46);
  const auto sent = [](const RunResult& run) {
    int64_t bytes = 0;
    for (const Instruction& instruction : run.step.program.instructions) {
      const auto* collective = std::get_if<Collective>(&instruction.action);
      if (collective == nullptr || collective->kind == CollectiveKind::kAllGather) continue;
      if (collective->kind == CollectiveKind::kAllReduceSum) continue;
      bytes += collective->full.elements() * SizeOf(collective->full.dtype);
    }
    return bytes;
  };
  const RunResult narrow = MustRun(options, tokens);
  options.step.reduce = DType::kFloat32;
  const RunResult wide = MustRun(options, tokens);
  EXPECT_EQ(2 * sent(narrow), sent(wide));
  EXPECT_LT(narrow.plan.peak_bytes, wide.plan.peak_bytes);
  EXPECT_LT(MostUnsharded(narrow.step.program), 0.7 * MostUnsharded(wide.step.program));
}

}  // namespace
}  // namespace shale::testing
