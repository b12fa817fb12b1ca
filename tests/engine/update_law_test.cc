// Tests the laws of updates: when a parameter is updated, and how long its gradient lives, must not change what an
// update computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/live_bytes.h"
#include "kernels/ops/flat.h"
#include "kernels/update_rules.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

// Returns a model whose position table has rows that no sequence of 11 tokens uses, and whose embedding is shared by
// two units.
DecoderConfig TiedDecoder() {
  DecoderConfig tied = SmallDecoder();
  tied.tied_head = true;
  tied.position = PositionKind::kLearned;
  return tied;
}

void ExpectEqualBits(const RunResult& a, const RunResult& b, const std::string& what) {
  ASSERT_FALSE(a.losses.empty()) << what;
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.weights, b.weights) << what;
}

std::vector<Mesh> Meshes(Strategy strategy) {
  std::vector<Mesh> meshes = {{1, 2}};
  if (TestsEveryCombination()) meshes.insert(meshes.end(), {{1, 1}, {1, 3}});
  if (strategy == Strategy::kDdp) return meshes;
  meshes.push_back({2, 2});
  if (TestsEveryCombination()) meshes.insert(meshes.end(), {{3, 1}, {2, 3}});
  return meshes;
}

// Calls visit(options, tokens, name) for some of the combinations of models, strategies, meshes and micro-batches. If
// every combination is tested, it visits every second one, like the fields of one color on a chessboard. `odd` says
// which color; other laws visit the other. The options run three steps, and keep no gradients.
template <class Visit>
void ForEachJob(bool odd, Visit&& visit) {
  int job = 0, row = 0;
  for (const DecoderConfig& model : {SmallDecoder(), TiedDecoder()}) {
    for (const Combination& c : Combinations()) {
      for (const Mesh& mesh : Meshes(c.strategy)) {
        ++row;
        for (int64_t micro_batches : {1, 3}) {
          // Every fifth goes through all models, combinations, meshes and micro-batches in turn.
          if (!TestsEveryCombination() && job++ % 5 != 0) continue;
          if (TestsEveryCombination() && (row + (micro_batches == 1) + odd) % 2 != 0) continue;
          RunOptions options;
          options.model = model;
          options.step.strategy = c.strategy;
          options.step.accumulation = c.accumulation;
          options.step.mesh = mesh;
          options.steps = 3;
          options.reads_gradients = false;
          visit(options, RandomTokens(mesh.ranks() * micro_batches, 11, model.vocabulary, 14),
                absl::StrCat(ToString(c.strategy), " ", ToString(c.accumulation), " R=", mesh.replicate,
                             " S=", mesh.shard, " K=", micro_batches, model.tied_head ? " tied" : ""));
        }
      }
    }
  }
}

TEST(UpdateLaws, KeepingGradientsChangesNoBits) {
  ForEachJob(/*odd=*/false, [](RunOptions options, const Tokens& tokens, const std::string& name) {
    const RunResult gone = MustRun(options, tokens);
    EXPECT_EQ(gone.measured_peak_bytes, gone.plan.peak_bytes) << name;
    options.reads_gradients = true;
    const RunResult kept = MustRun(options, tokens);
    ExpectEqualBits(gone, kept, name);
    EXPECT_EQ(gone.norms, kept.norms) << name;
    EXPECT_LE(gone.plan.peak_bytes, kept.plan.peak_bytes) << name;
  });
}

// Expects that updates in backward give the bits of those after it, in all jobs that `set` completes: it returns false
// for those to leave out.
void ExpectUpdatingInBackwardChangesNoBits(bool odd, const std::function<bool(RunOptions&, const Tokens&)>& set) {
  ForEachJob(odd, [&](RunOptions options, const Tokens& tokens, const std::string& name) {
    if (!set(options, tokens)) return;
    const RunResult after = MustRun(options, tokens);
    options.step.update = UpdateTime::kInBackward;
    const RunResult in_backward = MustRun(options, tokens);
    ExpectEqualBits(in_backward, after, name);
    EXPECT_EQ(in_backward.norms, after.norms) << name;
    EXPECT_EQ(in_backward.measured_peak_bytes, in_backward.plan.peak_bytes) << name;
  });
}

// Stochastic rounding has the same bits whenever a unit is updated. Jobs of several micro-batches suffice to show it.
TEST(UpdateLaws, UpdatingLeanStateInBackwardChangesNoBits) {
  ExpectUpdatingInBackwardChangesNoBits(/*odd=*/false, [](RunOptions& options, const Tokens& tokens) {
    options.dtype = DType::kBFloat16;
    options.step.master = MasterWeights::kNone;
    options.step.optimizer.rule = AdamWRule{.state_dtype = DType::kBFloat16};
    options.step.clipping = Clipping::kPerUnit;
    return tokens.sequences > options.step.mesh.ranks();
  });
}

// The limit of 0.05 clips each unit.
TEST(UpdateLaws, UpdatingInBackwardChangesNoBitsIfUnitsAreClippedAlone) {
  ExpectUpdatingInBackwardChangesNoBits(/*odd=*/false, [](RunOptions& options, const Tokens&) {
    options.max_norm = 0.05;
    options.step.clipping = Clipping::kPerUnit;
    return true;
  });
}

// From the second step on, the limit of 0.05 clips all units by one factor.
TEST(UpdateLaws, UpdatingInBackwardChangesNoBitsIfThePreviousNormClips) {
  ExpectUpdatingInBackwardChangesNoBits(/*odd=*/true, [](RunOptions& options, const Tokens&) {
    options.max_norm = 0.05;
    options.step.clipping = Clipping::kPreviousNorm;
    return true;
  });
}

// Plain SGD moves a weight by the rate times the clipped gradient, so the factor of a step can be seen. All arithmetic
// is fp32: the product of rate, factor and gradient has three roundings, and the new weight one.
TEST(UpdateLaws, AStepIsClippedByTheNormOfTheLastOneThatUpdated) {
  RunOptions options;
  options.step.optimizer = MakeOptimizer(OptimizerKind::kSgd, {.momentum = 0, .weight_decay = 0});
  options.step.clipping = Clipping::kPreviousNorm;
  options.step.mesh = {.shard = 2};
  options.max_norm = 0.05;
  const Tokens tokens = RandomTokens(4, 11, SmallDecoder().vocabulary, 17);
  Tokens masked = tokens;
  std::fill(masked.targets.begin(), masked.targets.end(), -1);
  std::map<std::string, std::vector<float>> before;
  options.edit_weights = [&](const std::string& name, std::vector<float>& values) { before[name] = values; };
  const auto expect_step = [&](const RunResult& result, double factor) {
    for (const auto& [name, gradient] : result.gradients) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        const double step = options.learning_rate * factor * gradient[i], want = before.at(name)[i] - step;
        ASSERT_NEAR(result.weights.at(name)[i], want, 0x1p-24 * (4 * std::abs(step) + std::abs(want))) << name << i;
      }
    }
  };
  const RunResult first = MustRun(options, tokens);
  ASSERT_EQ(first.norms.size(), 1);
  expect_step(first, 1);
  ASSERT_GT(first.norms[0], options.max_norm);
  before = first.weights;
  options.edit_weights = nullptr;
  // The second step has no token, is skipped, and leaves the norm of the first.
  for (const std::vector<Tokens>& batches : {std::vector{tokens, tokens}, {tokens, masked, tokens}}) {
    options.steps = static_cast<int>(batches.size());
    const absl::StatusOr<RunResult> result = RunJob(options, batches);
    ASSERT_TRUE(result.ok()) << result.status();
    expect_step(*result, options.max_norm / (first.norms[0] + 1e-6));
  }
}

// The norm is summed over groups and ranks in another order, in fp64, so it may differ by a rounding for each addition.
TEST(UpdateLaws, UpdatingInBackwardChangesNoBitsWithoutClipping) {
  ForEachJob(/*odd=*/true, [](RunOptions options, const Tokens& tokens, const std::string& name) {
    options.max_norm = 0;
    const RunResult after = MustRun(options, tokens);
    options.step.update = UpdateTime::kInBackward;
    const RunResult in_backward = MustRun(options, tokens);
    ExpectEqualBits(in_backward, after, name);
    ASSERT_EQ(in_backward.norms.size(), after.norms.size()) << name;
    for (size_t i = 0; i < after.norms.size(); ++i) {
      EXPECT_NEAR(in_backward.norms[i], after.norms[i], 1e-14 * after.norms[i]) << name;
    }
  });
}

// With LAYERED, or one micro-batch a step, the gradient of the entire model is never held. One rank holds that of one
// group at a time; several ranks hold those of the unit in backward and of the one being reduced and updated.
TEST(UpdateLaws, UpdatingInBackwardHoldsGradientsOfOneOrTwoUnits) {
  for (int64_t ranks : {1, 2}) {
    for (const auto& [accumulation, micro_batches] :
         {std::pair(Accumulation::kLayered, int64_t{3}), {Accumulation::kSharded, int64_t{1}}}) {
      RunOptions options;
      DecoderConfig model = SmallDecoder();
      model.layers = 5;
      options.model = model;
      options.step.accumulation = accumulation;
      options.step.mesh = {.shard = ranks};
      options.step.update = UpdateTime::kInBackward;
      options.reads_gradients = false;
      options.max_norm = 0;
      const RunResult result = MustRun(options, RandomTokens(micro_batches * ranks, 11, model.vocabulary, 15));
      const std::vector<Lifetime> lifetimes = ComputeLifetimes(result.step.program);
      for (size_t id = 0; id < result.step.program.instructions.size(); ++id) {
        int64_t held = 0;
        for (const GroupState& g : result.step.state.groups) {
          const Lifetime& lifetime = lifetimes[g.own_gradient.where.symbol];
          held += lifetime.first <= static_cast<InstructionId>(id) && static_cast<InstructionId>(id) <= lifetime.last;
        }
        EXPECT_LE(held, ranks == 1 ? 1 : 2) << ToString(accumulation) << " W=" << ranks << " instruction " << id;
      }
    }
  }
}

// Makes the gradient of one group infinite on one rank, before its squares are summed.
class Poisoner : public ExecutionObserver {
 public:
  Poisoner(BufferId gradient, RankRuntime& runtime) : gradient_(gradient), runtime_(runtime) {}
  void Before(InstructionId, int64_t, const Instruction& instruction) override {
    const auto* op = std::get_if<Op>(&instruction.action);
    const auto* squares = op == nullptr ? nullptr : op->As<SumSquares>();
    if (runtime_.rank() != 1 || squares == nullptr || squares->x_N.where.symbol != gradient_) return;
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(runtime_.Write(static_cast<std::byte*>(squares->x_N.data), &infinity, sizeof(infinity)).ok());
  }
  void After(InstructionId, int64_t, const Instruction&) override {}

 private:
  const BufferId gradient_;
  RankRuntime& runtime_;
};

TEST(UpdateLaws, AGradientThatIsNotFiniteSkipsItsUnitOnAllRanksAndNoOther) {
  const Tokens tokens = RandomTokens(4, 11, SmallDecoder().vocabulary, 16);
  for (UpdateTime update : {UpdateTime::kAfterBackward, UpdateTime::kInBackward}) {
    RunOptions options;
    options.step.mesh = {.shard = 2};
    options.step.update = update;
    options.step.clipping = Clipping::kPerUnit;
    options.reads_gradients = false;
    std::map<std::string, std::vector<float>> before;
    options.edit_weights = [&](const std::string& name, std::vector<float>& values) { before[name] = values; };
    const RunResult plain = MustRun(options, tokens);
    EXPECT_FALSE(plain.non_finite);
    constexpr size_t kGroup = 2;
    const BufferId gradient = plain.step.state.groups[kGroup].own_gradient.where.symbol;
    options.observe = [&](const StepProgram&, const MemoryPlan&, RankRuntime& runtime) {
      return std::make_unique<Poisoner>(gradient, runtime);
    };
    const RunResult poisoned = MustRun(options, tokens);
    EXPECT_TRUE(poisoned.non_finite) << ToString(update);
    for (const auto& [name, weight] : poisoned.weights) {
      const bool of_group = plain.step.state.groups[kGroup].layout().Find(name) != nullptr;
      EXPECT_EQ(weight, of_group ? before.at(name) : plain.weights.at(name)) << ToString(update) << " " << name;
    }
  }
}

TEST(UpdateLaws, ALossThatIsNotFiniteSkipsAllUpdatesInBackward) {
  const Tokens tokens = RandomTokens(4, 11, SmallDecoder().vocabulary, 11, /*masks=*/false);
  RunOptions options;
  options.step.mesh = {.shard = 2};
  options.step.update = UpdateTime::kInBackward;
  options.max_norm = 0;
  options.reads_gradients = false;
  std::map<std::string, std::vector<float>> before;
  options.edit_weights = [&](const std::string& name, std::vector<float>& values) {
    if (name == "head.weight") values[3] = std::numeric_limits<float>::infinity();
    before[name] = values;
  };
  const RunResult result = MustRun(options, tokens);
  EXPECT_TRUE(result.non_finite);
  EXPECT_EQ(result.weights, before);
}

}  // namespace
}  // namespace shale::testing
