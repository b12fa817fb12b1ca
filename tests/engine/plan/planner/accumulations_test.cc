// Tests how a job's accumulation is chosen.
#include "engine/plan/planner/accumulations.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/api/job.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/strings/printing.h"
#include "gtest/gtest.h"
#include "kernels/ops/matmul.h"
#include "proto/machine.pb.h"
#include "tests/engine/plan/planner/measured.h"
#include "tests/engine/plan/planner/plans.h"

namespace shale {
namespace {

TEST(AutoAccumulation, TakesTheLeastCommunicationThatFits) {
  Job job = SmallDecoderJob(false);
  const JobPlan unlimited = Plan(job);
  ASSERT_EQ(unlimited.candidates.size(), 3);
  // SHARDED has 2K gathers and K reductions, NO_SYNC 2K and 1, LAYERED 2 and 1.
  EXPECT_EQ(unlimited.options.accumulation, Accumulation::kLayered);
  std::vector<int64_t> peaks;
  for (const Variant& c : unlimited.candidates) {
    ASSERT_TRUE(c.status.ok()) << c.status;
    peaks.push_back(c.cost.arena_bytes);
  }
  for (int64_t budget : peaks) {
    const Variant* best = nullptr;
    for (const Variant& c : unlimited.candidates) {
      if (c.cost.arena_bytes > budget) continue;
      if (best == nullptr || c.cost.sent_bytes < best->cost.sent_bytes) best = &c;
    }
    job.memory.budget_bytes = budget;
    const JobPlan plan = Plan(job);
    EXPECT_EQ(plan.options.accumulation, best->accumulation) << budget;
    EXPECT_EQ(plan.arena_bytes, best->cost.arena_bytes);
    EXPECT_LE(plan.arena_bytes, budget);
  }
  // The accumulation that takes the least memory communicates most: it accumulates nothing unsharded and keeps nothing
  // for several micro-batches.
  job.memory.budget_bytes = *std::min_element(peaks.begin(), peaks.end());
  EXPECT_EQ(Plan(job).options.accumulation, Accumulation::kSharded);
}

TEST(AutoAccumulation, SaysWhyWithTheNumbersOfTheOthers) {
  Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  for (const Variant& c : plan.candidates) {
    EXPECT_TRUE(absl::StrContains(plan.accumulation_reason, FormatBytes(c.cost.arena_bytes)))
        << plan.accumulation_reason;
    EXPECT_TRUE(absl::StrContains(plan.accumulation_reason, FormatBytes(c.cost.sent_bytes)))
        << plan.accumulation_reason;
  }
  job.sharding.accumulation = Accumulation::kSharded;
  EXPECT_EQ(Plan(job).accumulation_reason, "the job names it");
}

// One micro-batch: every accumulation gathers twice and reduces once.
TEST(AutoAccumulation, OneMicroBatchTakesTheFirstThatFits) {
  for (const int64_t ranks : {1, 5}) {
    for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
      for (const bool offloads : {false, true}) {
        Job job = SmallDecoderJob(false);
        job.runtime.device = DeviceType::kCuda;
        if (offloads) job.memory.offload = {"blocks.*"};
        job.sharding.ranks = ranks;
        job.sharding.strategy = strategy;
        job.batch.global_batch = 2 * ranks;
        const JobPlan plan = Plan(job);
        ASSERT_EQ(plan.options.micro_batches, 1);
        const Accumulation first =
            CheckCombination(strategy, Accumulation::kSharded).ok() ? Accumulation::kSharded : Accumulation::kNoSync;
        EXPECT_EQ(plan.options.accumulation, first);
        EXPECT_TRUE(absl::StrContains(plan.accumulation_reason, "this is the first that fits"))
            << plan.accumulation_reason;
        int64_t least = plan.arena_bytes;
        for (const Variant& c : plan.candidates) {
          if (!c.status.ok()) continue;
          EXPECT_EQ(c.cost.sent_bytes, plan.chosen().cost.sent_bytes);
          least = std::min(least, c.cost.arena_bytes);
        }
        // One that needs less is taken where only that fits.
        job.memory.budget_bytes = least;
        EXPECT_EQ(Plan(job).arena_bytes, least);
      }
    }
  }
}

// LAYERED has no graphs on one rank.
TEST(AutoAccumulation, ComparesSecondsWithTheGraphsOfEachAccumulation) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = DeviceType::kCuda;
  job.sharding.ranks = 1;
  Job layered = job;
  layered.sharding.accumulation = Accumulation::kLayered;
  EXPECT_TRUE(UsesGraphs(job, Accumulation::kSharded));
  EXPECT_FALSE(UsesGraphs(job, Accumulation::kLayered));
  proto::MachineProfile profile = MeasuredFor({Plan(job), Plan(layered)});
  profile.set_device("CUDA");
  profile.set_issue_seconds(1e-3);
  const Machine machine = MachineWith(profile);
  const WorkLimits limits;
  Drafter drafter(job, machine, limits);
  const Variant open = drafter.Try({{"sharding.accumulation", "LAYERED"}});
  const absl::StatusOr<JobPlan> plan = PlanJob(job, machine);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto of_auto = std::find_if(plan->candidates.begin(), plan->candidates.end(),
                                    [](const Variant& c) { return c.accumulation == Accumulation::kLayered; });
  EXPECT_GT(open.cost.seconds, 0);
  EXPECT_EQ(of_auto->cost.seconds, open.cost.seconds);
}

// On a machine that was measured, AUTO takes the accumulation whose plan is predicted to be the fastest of those that
// fit. Where too little was measured, it takes what it takes without a profile.
TEST(AutoAccumulation, TakesTheFastestOnAMeasuredMachine) {
  Job job = SmallDecoderJob(false);
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kFullShard}) {
    job.sharding.strategy = strategy;
    std::vector<JobPlan> plans;
    for (const Accumulation named : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
      if (!CheckCombination(strategy, named).ok()) continue;
      Job one = job;
      one.sharding.accumulation = named;
      plans.push_back(Plan(one));
    }
    proto::MachineProfile profile = MeasuredFor(plans);
    const absl::StatusOr<JobPlan> chosen = PlanJob(job, MachineWith(profile));
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    const auto seconds = [&](const JobPlan& plan) { return PredictStep(job, plan, profile).step_seconds; };
    for (const JobPlan& plan : plans) EXPECT_LE(seconds(*chosen), seconds(plan));
    EXPECT_TRUE(absl::StrContains(chosen->accumulation_reason, "the fastest that fits")) << chosen->accumulation_reason;
    profile.clear_works();
    const absl::StatusOr<JobPlan> estimated = PlanJob(job, MachineWith(profile));
    ASSERT_TRUE(estimated.ok()) << estimated.status();
    EXPECT_EQ(estimated->accumulation_reason, Plan(job).accumulation_reason);
  }
}

TEST(AutoAccumulation, PassesOverWhatTheStrategyDoesNotHave) {
  Job job = SmallDecoderJob(false);
  job.sharding.strategy = Strategy::kZero1;
  const JobPlan plan = Plan(job);
  EXPECT_EQ(plan.candidates[0].accumulation, Accumulation::kSharded);
  EXPECT_FALSE(plan.candidates[0].status.ok());
  EXPECT_NE(plan.options.accumulation, Accumulation::kSharded);
  job.sharding.accumulation = Accumulation::kSharded;
  EXPECT_EQ(PlanJob(job, MachineOf()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(AutoAccumulation, OneRankTakesTheLeastMemory) {
  Job job = SmallDecoderJob(false);
  job.sharding.ranks = 1;
  const JobPlan plan = Plan(job);
  EXPECT_EQ(plan.options.accumulation, Accumulation::kSharded);
  for (const Variant& c : plan.candidates) EXPECT_EQ(c.cost.sent_bytes, 0);
}

// A sketch of a job that leaves its accumulation open has one that follows from the options where that is possible, and
// Place makes of it what Compile makes, which tries all of them.
TEST(AutoAccumulation, PlansOfSketchesAreThoseOfAllAccumulations) {
  Job job = SmallDecoderJob(/*tied=*/true);
  job.optimizer.max_gradient_norm = 0;
  const WorkLimits no_limits;
  const Machine machine = MachineOf();
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
    for (const UpdateTime update : {UpdateTime::kAfterBackward, UpdateTime::kInBackward}) {
      for (const int64_t micro_batch : {8, 4, 2}) {  // 1, 2 and 4 micro-batches a step.
        job.sharding.strategy = strategy;
        job.optimizer.update = update;
        job.batch.micro_batch = micro_batch;
        job.memory.budget_bytes = int64_t{1} << 40;
        std::vector<int64_t> budgets = {job.memory.budget_bytes};
        for (const Variant& c : Plan(job).candidates) budgets.push_back(c.cost.arena_bytes);
        for (const int64_t budget : budgets) {
          if (budget == 0) continue;  // The strategy does not have this accumulation.
          job.memory.budget_bytes = budget;
          const std::string what =
              absl::StrCat(ToString(strategy), " ", ToString(update), " ", micro_batch, " ", budget);
          Drafter drafter(job, machine, no_limits);
          absl::StatusOr<Draft> sketch = drafter.Sketch(job), whole = drafter.Compile();
          ASSERT_TRUE(sketch.ok() && whole.ok()) << what << ": " << sketch.status() << whole.status();
          EXPECT_EQ(sketch->cost.sent_bytes, whole->cost.sent_bytes) << what;
          const absl::StatusOr<Draft> placed = drafter.Place(job, *std::move(sketch));
          ASSERT_TRUE(placed.ok()) << what << ": " << placed.status();
          EXPECT_EQ(placed->options.accumulation, whole->options.accumulation) << what;
          EXPECT_EQ(placed->cost.arena_bytes, whole->cost.arena_bytes) << what;
          EXPECT_EQ(placed->fits, whole->fits) << what;
        }
      }
    }
  }
}

// Sketches leave LAYERED out by this bound.
TEST(AutoAccumulation, LayeredNeedsNoLessThanItsBound) {
  Job job = SmallDecoderJob(/*tied=*/false);
  job.sharding.accumulation = Accumulation::kLayered;
  const WorkLimits no_limits;
  const Machine machine = MachineOf();
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kFullShard}) {
    for (const CheckpointingPreset preset :
         {CheckpointingPreset::kNone, CheckpointingPreset::kCheap, CheckpointingPreset::kBlock}) {
      for (const int64_t micro_batch : {8, 4, 1}) {
        job.sharding.strategy = strategy;
        job.activation_checkpointing.preset = preset;
        job.batch.micro_batch = micro_batch;
        Drafter drafter(job, machine, no_limits);
        const absl::StatusOr<Draft> sketch = drafter.Sketch(job);
        ASSERT_TRUE(sketch.ok()) << sketch.status();
        const double least = LeastLayeredBytes(sketch->graphs->train, sketch->options);
        EXPECT_LE(least, static_cast<double>(sketch->cost.arena_bytes)) << ToString(preset) << " " << micro_batch;
        EXPECT_GT(least, 0);
      }
    }
  }
}

}  // namespace
}  // namespace shale
