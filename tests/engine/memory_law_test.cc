// Measured memory equals the plan, and instructions write only the bytes that they declare.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/step/combination.h"
#include "tests/engine/arena_checker.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

// Returns a random valid job, with any strategy, accumulation, activation checkpointing, optimizer, model, dtype, W and
// K.
RunOptions RandomJob(std::mt19937_64& random) {
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  RunOptions options;
  StepOptions& step = options.step;
  do {
    step.strategy = static_cast<Strategy>(pick(4));
    step.accumulation = static_cast<Accumulation>(1 + pick(3));
  } while (!CheckCombination(step.strategy, step.accumulation).ok());
  step.mesh = {.shard = 1 + pick(4)};
  step.prefetch = pick(4);
  step.reshard_after_forward = pick(4) != 0;
  step.activations.preset = static_cast<CheckpointingPreset>(pick(6));
  if (pick(3) == 0) step.activations.every_nth = 2;
  if (pick(4) == 0) step.activations.first_layers = 1;
  if (pick(2) == 0) step.activations.segment_blocks = 1 + pick(4);
  if (pick(3) == 0) step.activations.offload = {pick(2) ? "*" : "blocks.*.attention*"};
  if (pick(2) == 0) {
    options.dtype = DType::kBFloat16;
    if (pick(2) == 0) step.master = MasterWeights::kSplit;
  }
  if (pick(2) == 0) {
    const OptimizerEntry& entry = Optimizers()[pick(static_cast<int>(Optimizers().size()))];
    step.optimizer = MakeOptimizer(entry.kind, entry.defaults);
  }
  options.micro_batch = 1 + pick(3);
  options.loss_chunk_tokens = 1 + pick(30);
  if (pick(6) == 0) {
    options.model = SmallMlp();
    return options;
  }
  DecoderConfig c = SmallDecoder();
  c.layers = 1 + pick(5);
  c.tied_head = pick(2);
  c.qk_norm = pick(3) == 0;
  c.qkv_bias = pick(2);
  c.linear_bias = pick(3) == 0;
  if (pick(2)) c.norm = NormKind::kLayerNorm;
  if (pick(3) == 0) c.position = PositionKind::kLearned;
  if (pick(3) == 0) c.activation = Activation::kGeluTanh;
  c.parallel_block = pick(4) == 0;
  c.parallel_norms = c.parallel_block && pick(2);
  c.attention_window = pick(3) == 0 ? 3 : 0;
  options.model = c;
  return options;
}

std::string Describe(const RunOptions& o, int seed) {
  return absl::StrCat("seed ", seed, ": ", ToString(o.step.strategy), " ", ToString(o.step.accumulation), " ",
                      ToString(o.step.activations.preset), " in segments of ", o.step.activations.segment_blocks,
                      o.step.activations.offload.empty() ? "" : ", offloaded", " W=", o.step.mesh.ranks(),
                      " B=", o.micro_batch, " ", ToString(o.dtype), " ", EntryOf(o.step.optimizer.kind).name);
}

TEST(MemoryLaws, MeasuredPeakEqualsThePlanToTheByte) {
  for (int seed = 0; seed < (TestsEveryCombination() ? 200 : 4); ++seed) {
    std::mt19937_64 random(seed);
    const RunOptions options = RandomJob(random);
    const Tokens tokens = RandomTokens(1 + random() % 8, 9, 19, seed);
    absl::StatusOr<RunResult> result = RunJob(options, tokens);
    ASSERT_TRUE(result.ok()) << Describe(options, seed) << ": " << result.status();
    EXPECT_EQ(result->measured_peak_bytes, result->plan.peak_bytes) << Describe(options, seed);
  }
}

TEST(MemoryLaws, InstructionsWriteOnlyWhatTheySay) {
  for (int seed = 1000; seed < 1000 + (TestsEveryCombination() ? 40 : 2); ++seed) {
    std::mt19937_64 random(seed);
    RunOptions options = RandomJob(random);
    options.memory.red_zone_bytes = 256;
    options.steps = 2;
    std::vector<std::string> violations;
    std::mutex mutex;
    options.observe = [&](const StepProgram& program, const MemoryPlan& plan, RankRuntime& runtime) {
      return std::make_unique<ArenaChecker>(program, plan, runtime, [&](std::string text) {
        std::lock_guard lock(mutex);
        violations.push_back(std::move(text));
      });
    };
    const Tokens tokens = RandomTokens(1 + random() % 6, 9, 19, seed);
    absl::StatusOr<RunResult> checked = RunJob(options, tokens);
    ASSERT_TRUE(checked.ok()) << Describe(options, seed) << ": " << checked.status();
    EXPECT_TRUE(violations.empty()) << Describe(options, seed) << ": " << violations.size()
                                    << " violations, first: " << violations.front();
    // Dead bytes were poisoned with NaN. If an instruction had read them, the numbers would differ.
    options.observe = nullptr;
    options.memory.red_zone_bytes = 0;
    absl::StatusOr<RunResult> plain = RunJob(options, tokens);
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(checked->losses, plain->losses) << Describe(options, seed);
    EXPECT_EQ(checked->gradients, plain->gradients) << Describe(options, seed);
  }
}

TEST(MemoryLaws, ThePeakOfShardedAndDeferredDoesNotDependOnK) {
  const bool every = TestsEveryCombination();
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync}) {
    for (int64_t ranks : every ? std::vector<int64_t>{1, 2, 3} : std::vector<int64_t>{2}) {
      int64_t peak = 0;
      for (int64_t sequences : every ? std::vector<int64_t>{1, 2, 3, 9} : std::vector<int64_t>{1, 3}) {
        RunOptions options;
        options.step.accumulation = accumulation;
        options.step.mesh = {.shard = ranks};
        absl::StatusOr<RunResult> result = RunJob(options, RandomTokens(sequences * ranks, 9, 19, 5));
        ASSERT_TRUE(result.ok()) << result.status();
        if (peak == 0) peak = result->plan.peak_bytes;
        EXPECT_EQ(result->plan.peak_bytes, peak) << ToString(accumulation) << " W=" << ranks << " K=" << sequences;
        EXPECT_EQ(result->measured_peak_bytes, peak) << ToString(accumulation) << " W=" << ranks << " K=" << sequences;
      }
    }
  }
}

}  // namespace
}  // namespace shale::testing
