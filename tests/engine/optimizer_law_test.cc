// The laws of optimizers: how the state is sharded and stored must not change what an update computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/optimizer/optimizer.h"
#include "engine/compile/step/state.h"
#include "engine/compile/step/writer.h"
#include "engine/strings/pattern.h"
#include "kernels/integers.h"
#include "kernels/step_scalars.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"

namespace shale::testing {
namespace {

// All optimizers with hyper-parameters that matter in a few steps, SGD in its three forms.
struct Named {
  std::string name;
  Optimizer optimizer;
  double learning_rate;
};

std::vector<Named> AllOptimizers() {
  std::vector<Named> all;
  for (const OptimizerEntry& entry : Optimizers()) {
    Hyperparameters h = entry.defaults;
    h.weight_decay = 0.1;
    all.push_back({std::string(entry.name), MakeOptimizer(entry.kind, h), 1e-2});
    if (entry.Reads("moments")) {
      Hyperparameters bf16 = h;
      bf16.moments = DType::kBFloat16;
      all.push_back({absl::StrCat(entry.name, ", bf16 moments"), MakeOptimizer(entry.kind, bf16), 1e-2});
    }
    if (entry.Reads("relative_step")) {
      h.weight_decay = 0;
      h.beta1 = 0.9;
      h.relative_step = h.scale_parameter = false;
      all.push_back({"ADAFACTOR with a first moment", MakeOptimizer(entry.kind, h), 1e-2});
    }
    if (entry.kind != OptimizerKind::kSgd) continue;
    h.nesterov = true;
    all.push_back({"SGD, Nesterov", MakeOptimizer(entry.kind, h), 1e-2});
    h.momentum = 0;
    h.nesterov = false;
    all.push_back({"SGD without momentum", MakeOptimizer(entry.kind, h), 1e-2});
  }
  return all;
}

RunOptions With(const Named& named, Strategy strategy, int64_t ranks, DType dtype, MasterWeights master) {
  RunOptions options;
  options.step.strategy = strategy;
  options.step.accumulation = strategy == Strategy::kZero2 ? Accumulation::kLayered : Accumulation::kNoSync;
  options.step.mesh = {.shard = ranks};
  options.step.master = master;
  options.step.optimizer = named.optimizer;
  options.dtype = dtype;
  options.learning_rate = named.learning_rate;
  options.steps = 3;
  return options;
}

// In-process collectives sum in the order of ranks, so that every strategy gives the same gradient bits.
TEST(OptimizerLaws, EveryStrategyUpdatesTheSameBits) {
  const Tokens tokens = RandomTokens(6, 11, SmallDecoder().vocabulary, 21);
  for (const Named& named : AllOptimizers()) {
    if (named.optimizer.adafactor) continue;  // Adds sums of shards, in an order that depends on the shards.
    for (const auto& [dtype, master] : {std::pair(DType::kFloat32, MasterWeights::kFloat32),
                                        {DType::kBFloat16, MasterWeights::kFloat32},
                                        {DType::kBFloat16, MasterWeights::kSplit},
                                        {DType::kBFloat16, MasterWeights::kNone}}) {
      const RunResult replicated = MustRun(With(named, Strategy::kDdp, 3, dtype, master), tokens);
      ASSERT_EQ(replicated.losses.size(), 3);
      for (Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
        const RunResult sharded = MustRun(With(named, strategy, 3, dtype, master), tokens);
        const std::string what =
            absl::StrCat(named.name, " ", ToString(strategy), " ", ToString(dtype), " ", ToString(master));
        EXPECT_EQ(sharded.losses, replicated.losses) << what;
        for (const auto& [name, weight] : replicated.weights) {
          EXPECT_EQ(weight, sharded.weights.at(name)) << what << ": " << name;
        }
      }
    }
  }
}

// Stochastic rounding depends on the seed, so another seed trains another run.
TEST(OptimizerLaws, TheSeedChangesStochasticRoundingAndNothingElse) {
  const Tokens tokens = RandomTokens(4, 11, SmallDecoder().vocabulary, 22);
  const Named adamw = AllOptimizers()[0];
  for (MasterWeights master : {MasterWeights::kSplit, MasterWeights::kNone}) {
    RunOptions options = With(adamw, Strategy::kFullShard, 2, DType::kBFloat16, master);
    const RunResult one = MustRun(options, tokens);
    options.step.seed = 2;
    const RunResult other = MustRun(options, tokens);
    EXPECT_EQ(one.losses.front(), other.losses.front());
    EXPECT_EQ(one.weights == other.weights, master == MasterWeights::kSplit);
  }
}

TEST(OptimizerLaws, SplitAndFloatMastersTrainAlike) {
  const Tokens tokens = RandomTokens(4, 11, SmallDecoder().vocabulary, 22);
  for (const Named& named : AllOptimizers()) {
    const RunResult wide =
        MustRun(With(named, Strategy::kFullShard, 2, DType::kBFloat16, MasterWeights::kFloat32), tokens);
    const RunResult split =
        MustRun(With(named, Strategy::kFullShard, 2, DType::kBFloat16, MasterWeights::kSplit), tokens);
    EXPECT_EQ(wide.losses, split.losses) << named.name;
    for (const auto& [name, weight] : wide.weights) EXPECT_EQ(weight, split.weights.at(name)) << named.name << name;
  }
}

// Summing gradients in another order changes them by rounding. SGD's update is linear in the gradient, so its weights
// differ by no more than that. The other optimizers are compared by their losses, because rounding may turn a sign of
// Lion, an almost vanishing gradient of AdamW, an 8-bit code, or a direction that Muon makes of a small singular value.
// Each moves a weight, one of hundreds in a sum, by a learning rate of 1e-2 at most, and Muon by about
// sqrt(rows / columns) times that.
TEST(OptimizerLaws, RanksAgreeWithOne) {
  const Tokens tokens = RandomTokens(6, 11, SmallDecoder().vocabulary, 23);
  for (const Named& named : AllOptimizers()) {
    const RunResult one =
        MustRun(With(named, Strategy::kFullShard, 1, DType::kFloat32, MasterWeights::kFloat32), tokens);
    ASSERT_EQ(one.losses.size(), 3);
    for (int64_t ranks : {2, 5}) {
      const RunResult several =
          MustRun(With(named, Strategy::kFullShard, ranks, DType::kFloat32, MasterWeights::kFloat32), tokens);
      ASSERT_EQ(several.losses.size(), 3);
      for (int i = 0; i < 3; ++i) {
        EXPECT_NEAR(several.losses[i], one.losses[i], 2e-3 * one.losses[i]) << named.name << " W=" << ranks;
      }
      // Adafactor divides gradients by roots of sums of their squares, which are as smooth as the gradients.
      if (named.optimizer.kind != OptimizerKind::kSgd && !named.optimizer.adafactor) continue;
      std::string worst;
      EXPECT_LE(LargestDistance(several.weights, one.weights, &worst), 2e-5) << named.name << ": " << worst;
    }
  }
}

// Without masters, many updates are below half a bf16 step of their weight, so rounding to nearest would lose them.
TEST(OptimizerLaws, EveryOptimizerLearns) {
  const Tokens tokens = RandomTokens(4, 11, SmallDecoder().vocabulary, 24, /*masks=*/false);
  for (const Named& named : AllOptimizers()) {
    for (bool lean : {false, true}) {
      RunOptions options = With(named, Strategy::kFullShard, 2, lean ? DType::kBFloat16 : DType::kFloat32,
                                lean ? MasterWeights::kNone : MasterWeights::kFloat32);
      options.steps = 30;
      if (named.optimizer.kind == OptimizerKind::kSgd) options.learning_rate = 0.3;
      if (named.optimizer.adafactor && named.optimizer.adafactor->relative_step) options.learning_rate = 10;
      const RunResult result = MustRun(options, tokens);
      ASSERT_EQ(result.losses.size(), 30);
      EXPECT_LT(result.losses.back(), 0.8 * result.losses.front()) << named.name << (lean ? " without masters" : "");
    }
  }
}

TEST(OptimizerLaws, ThePlanHasTheBytesOfTheDeclaredStates) {
  const Tokens tokens = RandomTokens(3, 11, SmallDecoder().vocabulary, 25);
  for (const Named& named : AllOptimizers()) {
    for (MasterWeights master : {MasterWeights::kSplit, MasterWeights::kNone}) {
      RunOptions options = With(named, Strategy::kFullShard, 3, DType::kBFloat16, master);
      options.step.snapshot = true;
      const RunResult result = MustRun(options, tokens);
      int64_t states = sizeof(int64_t);  // The update count.
      int64_t values = 0;
      for (const GroupState& g : result.step.state.groups) {
        const int64_t shard = g.layout().shard_elements();
        const Optimizer& own = options.step.OptimizerOf(g);
        EXPECT_EQ(shard % BlockOf(own.rule), 0) << named.name;
        for (const UpdateState& state : own.states()) {
          states += g.PlacementOf(state).layout().shard_elements() / state.block * SizeOf(state.dtype);
        }
        values += (master == MasterWeights::kSplit ? 4 : 2) * shard;
      }
      const auto bytes = [&](BufferCategory category) { return result.plan.bytes_at_peak[static_cast<int>(category)]; };
      EXPECT_EQ(bytes(BufferCategory::kOptimizerState), states) << named.name;
      EXPECT_EQ(bytes(BufferCategory::kSnapshot), states - static_cast<int64_t>(sizeof(int64_t)) + values)
          << named.name;
      EXPECT_EQ(bytes(BufferCategory::kMasterWeights), master == MasterWeights::kSplit ? values / 2 : 0) << named.name;
      EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes) << named.name;
    }
  }
}

// Vectors by SGD, one block by an AdamW in 8 bits, all else by AdamW, each with settings of its own.
RunOptions WithGroups() {
  RunOptions options;
  const auto make = [](OptimizerKind kind, double decay, double factor) {
    Hyperparameters h = EntryOf(kind).defaults;
    h.weight_decay = decay;
    Optimizer optimizer = MakeOptimizer(kind, h);
    optimizer.learning_rate_factor = factor;
    return optimizer;
  };
  options.step.optimizer = make(OptimizerKind::kAdamW, 0.1, 1);
  options.step.optimizer_groups = {make(OptimizerKind::kSgd, 0, 0.5), make(OptimizerKind::kAdamW8Bit, 0.3, 2),
                                   make(OptimizerKind::kLion, 0.2, 0.25)};
  options.optimizer_groups = {{"*norm*"}, {"blocks.1.*"}, {"blocks.0.ffn.*"}};
  options.step.accumulation = Accumulation::kLayered;
  options.max_norm = 0;  // So that an update in backward, and other groups, change nothing.
  return options;
}

TEST(OptimizerGroupLaws, AParameterIsUpdatedAsInAJobWithTheRuleOfItsGroup) {
  const Tokens tokens = RandomTokens(6, 11, SmallDecoder().vocabulary, 26);
  RunOptions options = WithGroups();
  options.step.mesh = {.shard = 3};
  const RunResult grouped = MustRun(options, tokens);
  int compared = 0;
  for (int group = -1; group < 3; ++group) {
    RunOptions alone = options;
    alone.step.optimizer = options.step.OptimizerOf(group);
    alone.step.optimizer_groups.clear();
    alone.optimizer_groups.clear();
    const RunResult result = MustRun(alone, tokens);
    EXPECT_EQ(result.losses, grouped.losses);
    for (const auto& [name, weight] : result.weights) {
      if (FirstMatch(options.optimizer_groups, name) != group) continue;
      ++compared;
      EXPECT_EQ(grouped.weights.at(name), weight) << name << " of group " << group;
    }
  }
  EXPECT_EQ(compared, std::ssize(grouped.weights));
}

// How the state is divided, where it lies, and when and where it is updated changes no bit.
TEST(OptimizerGroupLaws, EveryWayToDivideAndToUpdateGivesTheSameBits) {
  const Tokens tokens = RandomTokens(6, 11, SmallDecoder().vocabulary, 27);
  for (const StoredWeights& weights : kStoredWeights) {
    RunOptions options = WithGroups();
    options.steps = 3;
    options.dtype = weights.dtype;
    options.step.master = weights.master;
    options.step.mesh = {.shard = 3};
    options.step.strategy = Strategy::kDdp;
    const RunResult one = MustRun(options, tokens);
    ASSERT_EQ(one.losses.size(), 3);
    for (Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
      for (UpdateTime update : {UpdateTime::kAfterBackward, UpdateTime::kInBackward}) {
        for (int place = 0; place < 3; ++place) {
          options.step.strategy = strategy;
          options.step.update = update;
          options.step.offload_state = {.moments = place == 1};
          options.step.update_device = place == 2 ? UpdateDevice::kHost : UpdateDevice::kSame;
          const RunResult other = MustRun(options, tokens);
          const std::string what = absl::StrCat(ToString(strategy), " ", ToString(update), " ", place, " ",
                                                ToString(weights.dtype), " ", ToString(weights.master));
          EXPECT_EQ(other.losses, one.losses) << what;
          EXPECT_EQ(other.weights, one.weights) << what;
          EXPECT_EQ(other.measured_peak_bytes, other.plan.peak_bytes) << what;
        }
      }
    }
  }
}

// Factors of a matrix are 4 bytes for each row and column, sharded.
TEST(AdafactorLaws, TheStateOfAMatrixIsItsRowsAndColumns) {
  const Tokens tokens = RandomTokens(3, 11, SmallDecoder().vocabulary, 29);
  RunOptions options;
  options.step.mesh = {.shard = 3};
  options.step.optimizer = MakeOptimizer(OptimizerKind::kAdafactor, EntryOf(OptimizerKind::kAdafactor).defaults);
  const RunResult result = MustRun(options, tokens);
  int64_t matrices = 0;
  for (const GroupState& g : result.step.state.groups) {
    ASSERT_EQ(g.states.size(), 1);
    const ShardLayout& factors = g.factor_placement->layout();
    EXPECT_EQ(g.states[0].elements(), factors.shard_elements());
    for (const ShardLayout::PlacedParameter& parameter : g.layout().parameters()) {
      if (parameter.shape.size() < 2) continue;
      ++matrices;
      EXPECT_EQ(factors.Find(parameter.name + ".rows")->elements, parameter.shape[0]) << parameter.name;
      EXPECT_EQ(factors.Find(parameter.name + ".columns")->elements, parameter.shape[1]) << parameter.name;
    }
  }
  EXPECT_GT(matrices, 5);
}

TEST(AdafactorLaws, RepeatsItsBitsAndCountsOneAllReduceForItsSums) {
  const Tokens tokens = RandomTokens(6, 11, SmallDecoder().vocabulary, 30);
  for (const StoredWeights& weights : kStoredWeights) {
    RunOptions options;
    options.steps = 3;
    options.dtype = weights.dtype;
    options.step.master = weights.master;
    options.step.mesh = {.replicate = 2, .shard = 3};
    options.step.optimizer = MakeOptimizer(OptimizerKind::kAdafactor, EntryOf(OptimizerKind::kAdafactor).defaults);
    options.learning_rate = 1;
    const RunResult one = MustRun(options, tokens), other = MustRun(options, tokens);
    EXPECT_EQ(one.weights, other.weights);
    EXPECT_EQ(one.measured_peak_bytes, one.plan.peak_bytes);
  }
}

TEST(AdafactorLaws, WhatItDoesNotGoWithIsRefusedByName) {
  RunOptions options;
  options.step.optimizer = MakeOptimizer(OptimizerKind::kAdafactor, EntryOf(OptimizerKind::kAdafactor).defaults);
  const Tokens tokens = RandomTokens(1, 11, SmallDecoder().vocabulary, 31);
  options.step.update = UpdateTime::kInBackward;
  EXPECT_EQ(RunJob(options, tokens).status().message(),
            "ADAFACTOR updates neither on the HOST nor IN_BACKWARD; use optimizer.device SAME and update "
            "AFTER_BACKWARD, or rule ADAMW_8BIT");
}

TEST(AdafactorLaws, AParameterOfThreeDimensionsIsRefusedByName) {
  ModelGraph model;
  model.parameters = {{.name = "filter", .shape = {2, 3, 4}}};
  model.groups = {{.name = "conv", .parameters = {0}}};
  StepOptions options;
  options.optimizer = MakeOptimizer(OptimizerKind::kAdafactor, EntryOf(OptimizerKind::kAdafactor).defaults);
  ProgramWriter writer;
  EXPECT_EQ(DeclareState(model, options, writer).status().message(),
            "ADAFACTOR updates vectors and matrices, and filter has 3 dimensions; give it another rule in "
            "optimizer.groups");
}

Optimizer Muon() { return MakeOptimizer(OptimizerKind::kMuon, EntryOf(OptimizerKind::kMuon).defaults); }

// Matrices of blocks have one state, and all other parameters those of AdamW.
TEST(MuonLaws, LeavesEmbeddingsNormsAndTheHeadToAdamW) {
  RunOptions options;
  options.step.mesh = {.shard = 3};
  options.step.optimizer = Muon();
  const RunResult result = MustRun(options, RandomTokens(3, 11, SmallDecoder().vocabulary, 32));
  std::set<std::string> of_muon, of_adamw;
  for (const GroupState& g : result.step.state.groups) {
    int64_t kept = 0;
    for (const Tensor& t : g.states) kept += t.present();
    EXPECT_EQ(kept, g.block_matrices ? 1 : 2);
    for (const ShardLayout::PlacedParameter& p : g.layout().parameters()) {
      (g.block_matrices ? of_muon : of_adamw).insert(p.name);
      EXPECT_TRUE(!g.block_matrices || p.shape.size() == 2) << p.name;
    }
  }
  for (const char* name : {"embedding.weight", "head.weight", "final_norm.weight", "blocks.0.attention_norm.weight"}) {
    EXPECT_EQ(of_adamw.count(name), 1) << name;
  }
  EXPECT_EQ(of_muon.size(), 4 * std::get<DecoderConfig>(options.model).layers);
}

// In a job of another rule, a group of MUON leaves to AdamW what it does not update. Nothing else is divided.
TEST(MuonLaws, AGroupIsDividedAndOthersAreNot) {
  RunOptions options;
  options.step.optimizer_groups = {Muon()};
  options.optimizer_groups = {{"blocks.1.*"}};
  const RunResult result = MustRun(options, RandomTokens(3, 11, SmallDecoder().vocabulary, 33));
  std::vector<std::pair<int, bool>> groups;
  for (const GroupState& g : result.step.state.groups) groups.push_back({g.optimizer_group, g.block_matrices});
  EXPECT_EQ(std::count(groups.begin(), groups.end(), std::pair(0, true)), 1);
  EXPECT_EQ(std::count(groups.begin(), groups.end(), std::pair(0, false)), 1);
  EXPECT_EQ(std::count(groups.begin(), groups.end(), std::pair(-1, true)), 0);
}

// On a mesh, ranks of a row gather the direction of each flat group of matrices once, and replicas send nothing.
TEST(MuonLaws, RepeatsItsBitsAndGathersEachGroupOnce) {
  const Tokens tokens = RandomTokens(6, 11, SmallDecoder().vocabulary, 34);
  for (const StoredWeights& weights : kStoredWeights) {
    RunOptions options;
    options.steps = 3;
    options.dtype = weights.dtype;
    options.step.master = weights.master;
    options.step.mesh = {.replicate = 2, .shard = 3};
    options.step.optimizer = Muon();
    const RunResult one = MustRun(options, tokens), other = MustRun(options, tokens);
    EXPECT_EQ(one.weights, other.weights);
    EXPECT_EQ(one.measured_peak_bytes, one.plan.peak_bytes);
    int64_t gathers = 0, groups = 0;
    for (const Instruction& instruction : one.step.program.instructions) {
      const auto* collective = std::get_if<Collective>(&instruction.action);
      gathers += collective != nullptr && instruction.phase == Phase::kUpdate &&
                 collective->kind == CollectiveKind::kAllGather && collective->full.elements() > 3 * kTotalSize;
    }
    for (const GroupState& g : one.step.state.groups) groups += g.block_matrices;
    EXPECT_EQ(gathers, groups);
  }
}

TEST(MuonLaws, WhatItDoesNotGoWithIsRefusedByName) {
  RunOptions options;
  options.step.optimizer = Muon();
  options.step.update_device = UpdateDevice::kHost;
  EXPECT_EQ(RunJob(options, RandomTokens(1, 11, SmallDecoder().vocabulary, 35)).status().message(),
            "MUON updates neither on the HOST nor IN_BACKWARD; use optimizer.device SAME and update AFTER_BACKWARD, or "
            "rule ADAMW_8BIT");
}

TEST(OptimizerGroupLaws, AGroupKeepsTheStatesOfItsRuleAndNoOthers) {
  const Tokens tokens = RandomTokens(3, 11, SmallDecoder().vocabulary, 28);
  RunOptions options = WithGroups();
  options.step.mesh = {.shard = 3};
  const RunResult result = MustRun(options, tokens);
  int64_t bytes = sizeof(int64_t);  // The update count.
  std::set<int> seen;
  for (const GroupState& g : result.step.state.groups) {
    seen.insert(g.optimizer_group);
    const Optimizer& optimizer = options.step.OptimizerOf(g.optimizer_group);
    int64_t kept = 0;
    for (const Tensor& t : g.states) kept += t.present();
    EXPECT_EQ(kept, std::ssize(optimizer.states()));
    bytes += StateBytes(optimizer, g.layout().shard_elements());
  }
  EXPECT_EQ(seen, (std::set<int>{-1, 0, 1, 2}));
  EXPECT_EQ(result.plan.bytes_at_peak[static_cast<int>(BufferCategory::kOptimizerState)], bytes);
}

}  // namespace
}  // namespace shale::testing
