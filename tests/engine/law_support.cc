#include "tests/engine/law_support.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/run/verify/trial_run.h"
#include "gtest/gtest.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {

RunResult MustRun(const RunOptions& options, const std::vector<Tokens>& batches) {
  absl::StatusOr<RunResult> result = RunJob(options, batches);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : RunResult();
}

RunResult MustRun(const RunOptions& options, const Tokens& tokens) {
  return MustRun(options, std::vector<Tokens>{tokens});
}

void ForEachUpdate(int every, absl::Span<const StoredWeights> stored, const VisitUpdate& visit) {
  int job = 0;
  for (const Combination& c : Combinations()) {
    for (const Mesh& mesh : {Mesh{1, 1}, {1, 2}, {1, 3}, {2, 2}}) {
      if (c.strategy == Strategy::kDdp && mesh.replicate > 1) continue;
      for (const StoredWeights& weights : stored) {
        for (UpdateTime update : {UpdateTime::kAfterBackward, UpdateTime::kInBackward}) {
          for (int64_t micro_batches : {1, 3}) {
            if (++job % every != 0) continue;
            RunOptions options;
            options.dtype = weights.dtype;
            options.step.master = weights.master;
            options.step.strategy = c.strategy;
            options.step.accumulation = c.accumulation;
            options.step.mesh = mesh;
            options.step.update = update;
            options.step.reshard_after_forward = job % 4 != 0;
            options.steps = 2;
            visit(job, options, RandomTokens(mesh.ranks() * micro_batches, 11, SmallDecoder().vocabulary, 31),
                  absl::StrCat(ToString(c.strategy), " ", ToString(c.accumulation), " R=", mesh.replicate,
                               " S=", mesh.shard, " K=", micro_batches, " ", ToString(weights.dtype), " ",
                               ToString(weights.master), " ", ToString(update)));
          }
        }
      }
    }
  }
}

RunOptions OptionsOf(const OptimizerEntry& entry, bool lean, MasterWeights master) {
  RunOptions options;
  options.dtype = DType::kBFloat16;
  options.step.master = lean ? MasterWeights::kNone : master;
  Hyperparameters h = entry.defaults;
  h.weight_decay = 0.1;
  if (lean) h.moments = DType::kBFloat16;  // ADAMW_8BIT does not read it.
  options.step.optimizer = MakeOptimizer(entry.kind, h);
  return options;
}

void ExpectRanksAgree(RunOptions options, const Tokens& tokens, const std::function<bool(const std::string&)>& trains) {
  constexpr double kReordered = 2e-5;  // As in laws_test.cc.
  options.gradients_of_first_step = true;
  std::map<std::string, std::vector<float>> initial;
  const auto edit = options.edit_weights;
  options.edit_weights = [&](const std::string& name, std::vector<float>& values) {
    if (edit) edit(name, values);
    initial[name] = values;
  };
  const RunResult one = MustRun(options, tokens);
  options.edit_weights = edit;
  for (const Combination& c : Combinations()) {
    for (const Mesh& mesh : {Mesh{1, 3}, Mesh{2, 2}}) {
      if (mesh.replicate > 1 && (c.strategy == Strategy::kDdp || !TestsEveryCombination())) continue;
      options.step.strategy = c.strategy;
      options.step.accumulation = c.accumulation;
      options.step.mesh = mesh;
      const std::string what =
          absl::StrCat(ToString(c.strategy), " ", ToString(c.accumulation), " ", mesh.replicate, " x ", mesh.shard);
      const RunResult result = MustRun(options, tokens);
      ASSERT_FALSE(result.losses.empty()) << what;
      EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes) << what;
      for (const auto& [name, weight] : result.weights) {
        EXPECT_EQ(weight == initial.at(name), !trains(name)) << what << ": " << name;
      }
      std::string worst;
      EXPECT_NEAR(result.losses[0], one.losses[0], kReordered * one.losses[0]) << what;
      EXPECT_NEAR(result.norms[0], one.norms[0], kReordered * one.norms[0]) << what;
      EXPECT_LE(LargestDistance(result.gradients, one.gradients, &worst), kReordered) << what << ": " << worst;
    }
  }
}

void ExpectSchedulesAgree(
    RunOptions options, const Tokens& tokens, int64_t most_blocks,
    const std::function<void(RunOptions&, const std::function<void(const std::string&)>&)>& more) {
  options.step.accumulation = Accumulation::kNoSync;
  const RunResult no_sync = MustRun(options, tokens);
  const auto expect_same = [&](const std::string& what) {
    const RunResult result = MustRun(options, tokens);
    EXPECT_EQ(result.losses, no_sync.losses) << what;
    EXPECT_TRUE(result.gradients == no_sync.gradients) << what;
    EXPECT_TRUE(result.weights == no_sync.weights) << what;
    EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes) << what;
  };
  options.step.accumulation = Accumulation::kLayered;
  expect_same("LAYERED");
  for (const int preset : {1, 2, 3, 4, 5}) {
    for (int64_t segment = 1; segment <= most_blocks; ++segment) {
      if (!TestsEveryCombination() && preset != 2 + segment) continue;
      options.step.activations = {.preset = static_cast<CheckpointingPreset>(preset), .segment_blocks = segment};
      expect_same(absl::StrCat(ToString(options.step.activations.preset), " in segments of ", segment));
    }
  }
  options.step.activations = {.offload = {"*"}};
  expect_same("offload");
  if (more != nullptr) more(options, expect_same);
}

}  // namespace shale::testing
