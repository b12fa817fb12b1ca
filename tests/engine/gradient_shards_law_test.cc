// The laws of bf16 gradient shards: the rounding of a sum depends on the numbers that are summed, on the update, the
// micro-batch and the element, and on nothing else. See [Note: bf16 gradients] in engine/compile/step/reduce.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/compile/program/live_bytes.h"
#include "kernels/ops/flat.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

constexpr int64_t kMicroBatches = 3;

// Two units write gradients of the embedding's group.
DecoderConfig TiedDecoder() {
  DecoderConfig tied = SmallDecoder();
  tied.tied_head = true;
  return tied;
}

RunOptions With(Strategy strategy, Accumulation accumulation, const Mesh& mesh) {
  RunOptions options;
  options.model = TiedDecoder();
  options.dtype = DType::kBFloat16;
  options.steps = 3;
  options.max_norm = 0;  // The parts of the norm are summed in another order.
  options.step.strategy = strategy;
  options.step.accumulation = accumulation;
  options.step.mesh = mesh;
  options.step.master = MasterWeights::kNone;
  options.step.optimizer.rule = AdamWRule{.state_dtype = DType::kBFloat16};
  options.step.gradient_shards = DType::kBFloat16;
  return options;
}

// Returns a batch of kMicroBatches sequences, each of which is alone in its micro-batch, on the rank that
// rank_of(micro-batch) returns. All other sequences are masked. Their gradients are zeros, which change no sum, so
// every number of ranks sums the same numbers.
template <class RankOf>
Tokens OneInEachMicroBatch(int64_t ranks, const RankOf& rank_of) {
  const Tokens few = RandomTokens(kMicroBatches, 11, TiedDecoder().vocabulary, 31);
  Tokens tokens = RandomTokens(kMicroBatches * ranks, 11, TiedDecoder().vocabulary, 32);
  std::fill(tokens.targets.begin(), tokens.targets.end(), -1);
  for (int64_t k = 0; k < kMicroBatches; ++k) {
    const int64_t to = (k * ranks + rank_of(k)) * tokens.length, from = k * tokens.length;
    std::copy_n(few.inputs.begin() + from, tokens.length, tokens.inputs.begin() + to);
    std::copy_n(few.targets.begin() + from, tokens.length, tokens.targets.begin() + to);
  }
  return tokens;
}

void ExpectEqualBits(const RunResult& a, const RunResult& b, const std::string& what) {
  ASSERT_FALSE(a.losses.empty()) << what;
  EXPECT_EQ(a.gradients, b.gradients) << what;
  EXPECT_EQ(a.weights, b.weights) << what;
}

// On a mesh with replicas, one row has all tokens: if several had some, each would round a part of the sum.
TEST(GradientShardLaws, EveryNumberOfRanksRoundsTheSameBits) {
  std::vector<Mesh> meshes = {{1, 2}, {2, 2}};
  if (TestsEveryCombination()) meshes.insert(meshes.end(), {{1, 3}, {1, 4}, {3, 2}, {2, 3}});
  for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    const RunResult one =
        MustRun(With(Strategy::kFullShard, accumulation, {}), OneInEachMicroBatch(1, [](int64_t) { return 0; }));
    for (const Strategy strategy : {Strategy::kZero2, Strategy::kFullShard}) {
      if (!TestsEveryCombination() && strategy == Strategy::kZero2) continue;
      for (const Mesh& mesh : meshes) {
        // LAYERED sums the micro-batches of a rank before it rounds.
        const bool alternate = accumulation == Accumulation::kSharded && mesh.replicate == 1;
        const auto rank_of = [&](int64_t k) { return alternate ? k % mesh.ranks() : mesh.ranks() - 1; };
        const RunResult several =
            MustRun(With(strategy, accumulation, mesh), OneInEachMicroBatch(mesh.ranks(), rank_of));
        const std::string what =
            absl::StrCat(ToString(strategy), " ", ToString(accumulation), " R=", mesh.replicate, " S=", mesh.shard);
        ExpectEqualBits(several, one, what);
        EXPECT_EQ(several.measured_peak_bytes, several.plan.peak_bytes) << what;
      }
    }
  }
}

TEST(GradientShardLaws, ThreadsAndTheTimeOfUpdatesChangeNoBits) {
  const Tokens tokens = RandomTokens(2 * kMicroBatches, 11, TiedDecoder().vocabulary, 33);
  for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    RunOptions options = With(Strategy::kFullShard, accumulation, {.shard = 2});
    const RunResult plain = MustRun(options, tokens);
    options.threads = 3;
    ExpectEqualBits(MustRun(options, tokens), plain, "threads");
    options.threads = 1;
    options.step.update = UpdateTime::kInBackward;
    ExpectEqualBits(MustRun(options, tokens), plain, "update in backward");
    options.step.seed = 2;
    EXPECT_NE(MustRun(options, tokens).gradients, plain.gradients);
  }
}

// K = 3 roundings of a sum err by less than one bf16 step each, 2^-7 of a partial sum at most. Partial sums are about
// as large as the result, so the distance of all is below 3 * 2^-7.
TEST(GradientShardLaws, SumsAreThoseOfFp32ButForTheirRounding) {
  for (const Mesh& mesh : {Mesh{1, 1}, Mesh{1, 2}, Mesh{2, 2}}) {
    const Tokens tokens = RandomTokens(mesh.ranks() * kMicroBatches, 11, TiedDecoder().vocabulary, 34);
    for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
      RunOptions options = With(Strategy::kFullShard, accumulation, mesh);
      options.gradients_of_first_step = true;
      const RunResult narrow = MustRun(options, tokens);
      options.step.gradient_shards = DType::kFloat32;
      const RunResult wide = MustRun(options, tokens);
      std::string worst;
      EXPECT_LE(LargestDistance(narrow.gradients, wide.gradients, &worst), kMicroBatches * 0x1p-7) << worst;
      EXPECT_NE(narrow.gradients, wide.gradients);
      EXPECT_EQ(narrow.losses[0], wide.losses[0]);
      EXPECT_NEAR(narrow.norms[0], wide.norms[0], 0.02 * wide.norms[0]);
    }
  }
}

// If two roundings of an element used the same bits, their sum would not be exact on average.
TEST(GradientShardLaws, NoTwoRoundingsOfAStepUseTheSameBits) {
  for (const Mesh& mesh : {Mesh{1, 1}, Mesh{2, 2}}) {
    RunOptions options = With(Strategy::kFullShard, Accumulation::kSharded, mesh);
    const RunResult result = MustRun(options, RandomTokens(mesh.ranks() * kMicroBatches, 11, 23, 35));
    std::set<std::pair<int32_t, uint32_t>> streams;
    size_t roundings = 0;
    for (const Instruction& instruction : result.step.program.instructions) {
      const Op* op = std::get_if<Op>(&instruction.action);
      const Accumulate* sum = op == nullptr ? nullptr : op->As<Accumulate>();
      if (sum == nullptr) continue;
      ++roundings;
      streams.insert({sum->group, sum->stream});
      EXPECT_TRUE(sum->micro_batch_1.present());
    }
    EXPECT_EQ(streams.size(), roundings);
    // The embedding's group is rounded twice, and on a mesh each group once more.
    const size_t groups = result.step.state.groups.size();
    EXPECT_EQ(roundings, (mesh.replicate > 1 ? 2 : 1) * groups + 1);
  }
}

TEST(GradientShardLaws, GradientsTakeTwoBytesAParameterAndOneGroupIsWidenedAtATime) {
  for (const Mesh& mesh : {Mesh{1, 1}, Mesh{1, 2}}) {
    RunOptions options = With(Strategy::kFullShard, Accumulation::kSharded, mesh);
    DecoderConfig model = SmallDecoder();
    model.layers = 12;
    options.model = model;
    options.reads_gradients = false;
    const Tokens tokens = RandomTokens(mesh.ranks() * kMicroBatches, 5, model.vocabulary, 36);
    const RunResult narrow = MustRun(options, tokens);
    options.step.gradient_shards = DType::kFloat32;
    const RunResult wide = MustRun(options, tokens);
    int64_t saved = 0;
    for (size_t g = 0; g < wide.step.state.groups.size(); ++g) {
      const auto bytes = [&](const RunResult& run) {
        return run.step.program.buffers[run.step.state.groups[g].own_gradient.where.symbol].size_bytes();
      };
      EXPECT_EQ(2 * bytes(narrow), bytes(wide));
      saved += bytes(narrow);
    }
    // One rank holds the fp32 gradient of the unit in backward in addition. On several ranks it is there anyway.
    EXPECT_LT(narrow.plan.peak_bytes, wide.plan.peak_bytes - saved / 2);
    const StepProgram& program = narrow.step.program;
    const std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
    for (InstructionId id = 0; id < static_cast<InstructionId>(program.instructions.size()); ++id) {
      int widened = 0;
      for (size_t b = 0; b < program.buffers.size(); ++b) {
        if (!absl::EndsWith(program.buffers[b].name, ".widened")) continue;
        widened += lifetimes[b].first <= id && id <= lifetimes[b].last;
      }
      EXPECT_LE(widened, 1) << id;
    }
  }
}

}  // namespace
}  // namespace shale::testing
