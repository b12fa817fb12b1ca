// Tests how a job's accumulation is chosen, what its plan holds, and what is refused as too large to be planned.
#include "engine/plan/planner/job_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/api/job.h"
#include "engine/plan/planner/draft.h"
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

// ScratchOnlyOps whose matmuls all pack their b.
class PackingOps : public ScratchOnlyOps {
 public:
  int64_t PackedBytes(const MatMul& op) const override { return op.b.extent_bytes() + 64; }
};

TEST(Plan, LayeredPacksWeightsOnceOnlyWhereThereIsRoom) {
  Job job = SmallDecoderJob(false);
  job.sharding.accumulation = Accumulation::kLayered;
  const int64_t without = Plan(job).arena_bytes;
  const absl::StatusOr<JobPlan> roomy = PlanJob(job, MachineOf<PackingOps>());
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  EXPECT_GT(roomy->arena_bytes, without);
  EXPECT_TRUE(roomy->options.prepares_weights_once);
  EXPECT_TRUE(PacksOnce(roomy->train.step.program));
  for (const int64_t budget : {without, roomy->arena_bytes - 1, roomy->arena_bytes}) {
    job.memory.budget_bytes = budget;
    const absl::StatusOr<JobPlan> plan = PlanJob(job, MachineOf<PackingOps>());
    ASSERT_TRUE(plan.ok()) << plan.status();
    const bool fits = budget == roomy->arena_bytes;
    EXPECT_EQ(plan->arena_bytes, fits ? roomy->arena_bytes : without);
    EXPECT_EQ(PacksOnce(plan->train.step.program), fits);
  }
  job.memory.budget_bytes = without - 1;
  EXPECT_EQ(PlanJob(job, MachineOf<PackingOps>()).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Plan, WeightsAreQuantizedOnceOnlyWhereThereIsRoom) {
  Job job = SmallFloat8Job();
  job.sharding.ranks = 1;
  job.sharding.accumulation = Accumulation::kSharded;
  job.batch.global_batch = 2 * job.batch.micro_batch;
  const JobPlan roomy = Plan(job);
  EXPECT_TRUE(QuantizesOnce(roomy.train.step.program));
  job.memory.budget_bytes = roomy.arena_bytes - 1;
  const JobPlan tight = Plan(job);
  EXPECT_LT(tight.arena_bytes, roomy.arena_bytes);
  EXPECT_FALSE(tight.options.prepares_weights_once);
  EXPECT_FALSE(QuantizesOnce(tight.train.step.program));
  job.sharding.ranks = 2;  // Each micro-batch gathers them.
  job.batch.global_batch *= 2;
  job.memory.budget_bytes = 0;
  EXPECT_FALSE(QuantizesOnce(Plan(job).train.step.program));
}

TEST(Plan, EvaluationAndGenerationUseTheSamePersistentBytes) {
  for (Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
    Job job = SmallDecoderJob(true);
    job.sharding.strategy = strategy;
    EXPECT_TRUE(Plan(job).generate.empty());
    job.runtime.generate = true;
    const JobPlan plan = Plan(job);
    ASSERT_FALSE(plan.generate.empty());
    EXPECT_EQ(plan.generate[0].graph.micro_batch, 1);
    EXPECT_EQ(plan.arena_bytes,
              std::max({plan.train.memory.peak_bytes, plan.evaluate.memory.peak_bytes, plan.generate_peak_bytes()}));
    const absl::StatusOr<PlannedProgram> logits = PlanProgram(job, plan.options, GraphMode::kLogits, ScratchOnlyOps());
    ASSERT_TRUE(logits.ok()) << logits.status();
    for (const PlannedProgram* other : {&plan.evaluate, &plan.generate.front(), &plan.generate.back(), &*logits}) {
      // A cache lies behind the state.
      EXPECT_EQ(other->memory.persistent_bytes > plan.train.memory.persistent_bytes, other->graph.cache.positions > 0);
      for (size_t b = 0; b < plan.train.step.program.buffers.size(); ++b) {
        const Buffer& buffer = plan.train.step.program.buffers[b];
        if (!buffer.persistent) break;
        EXPECT_EQ(other->step.program.buffers[b].name, buffer.name);
        EXPECT_EQ(other->step.program.buffers[b].size_bytes(), buffer.size_bytes());
        EXPECT_EQ(other->memory.addresses[b], plan.train.memory.addresses[b]);
      }
    }
  }
}

TEST(Plan, TakesTheSameMemoryForEveryNumberOfMicroBatchesAboveOneAndLessForOne) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync}) {
    Job job = SmallDecoderJob(false);
    job.sharding.accumulation = accumulation;
    job.batch.global_batch = 10;
    const int64_t one = Plan(job).arena_bytes;
    job.batch.global_batch = 20;
    const int64_t two = Plan(job).arena_bytes;
    EXPECT_LT(one, two) << ToString(accumulation);
    for (int64_t k : {3, 1000}) {
      job.batch.global_batch = 10 * k;
      EXPECT_EQ(Plan(job).arena_bytes, two) << ToString(accumulation) << " K = " << k;
    }
  }
}

TEST(Plan, SegmentsOfADeepModelHoldTwiceTheSquareRootOfItsBoundaries) {
  const auto boundaries = [](const std::string& setting) {
    const absl::StatusOr<Job> job = LoadJob("tools/jobs/llama3_405b.textproto", {setting});
    EXPECT_TRUE(job.ok()) << job.status();
    const int64_t boundary = job->batch.sequence_length * std::get<DecoderConfig>(job->model).width * 2;
    return Plan(*job).train.memory.bytes_at_peak[static_cast<int>(BufferCategory::kActivationBoundaries)] / boundary;
  };
  const int64_t blocks = boundaries("name=blocks"), sqrt = boundaries("activation_checkpointing.segments=SQRT");
  // At the peak, two gradients of boundaries live besides the boundaries that wait for backward.
  EXPECT_GE(blocks, 126);
  EXPECT_LE(blocks, 128);
  EXPECT_LE(sqrt, 22 + 2);  // 2 sqrt(126) = 22.4.
}

TEST(Plan, RefusesPatternsThatMatchNothing) {
  const auto refusal = [](auto&& set) {
    Job job = SmallDecoderJob(false);
    job.runtime.device = DeviceType::kCuda;
    set(job);
    const absl::Status status = PlanJob(job, MachineOf()).status();
    return status.ok() ? "" : std::string(status.message());
  };
  EXPECT_TRUE(
      absl::StartsWith(refusal([](Job& job) {
                         job.optimizer.no_decay = {"embedding*", "embeding*"};
                       }),
                       "optimizer.no_decay[1]: \"embeding*\" matches no parameter of the model; found embedding."));
  EXPECT_TRUE(
      absl::StartsWith(refusal([](Job& job) {
                         job.optimizer.train_only = {"blocks.0.*", "bloks.1.*"};
                       }),
                       "optimizer.train_only[1]: \"bloks.1.*\" matches no parameter of the model; found embedding."));
  EXPECT_TRUE(absl::StartsWith(
      refusal([](Job& job) { job.activation_checkpointing.recompute = {"blocks.*.ffn.nothing"}; }),
      "activation_checkpointing.recompute[0]: \"blocks.*.ffn.nothing\" matches no activation that could be "
      "recomputed of the model; found "));
  EXPECT_TRUE(absl::StartsWith(refusal([](Job& job) { job.memory.offload = {"block.*"}; }),
                               "memory.offload[0]: \"block.*\" matches no activation of the model; found "));
  EXPECT_EQ(refusal([](Job& job) {
              job.optimizer.no_decay = {"embedding*"};
              job.optimizer.train_only = {"blocks.2.*", "*norm*"};
              job.activation_checkpointing.recompute = {"blocks.0.*"};
              job.memory.offload = {"*"};
            }),
            "");
}

// Returns a default budget with both limits, named "a GPU's memory" and "a machine's memory".
DefaultBudget Here(int64_t bytes, int64_t host_bytes) {
  return [=](int64_t) -> absl::StatusOr<Budget> {
    return Budget{
        .bytes = bytes, .origin = "a GPU's memory", .host_bytes = host_bytes, .host_origin = "a machine's memory"};
  };
}

TEST(PlanJobForAnywhere, RemarksWhatThisMachineLacks) {
  Job job = OffloadingJob(Accumulation::kLayered);
  job.memory.budget_bytes = 0;
  const JobPlan plan = Plan(job);
  const int64_t arena = plan.arena_bytes, host = plan.train.memory.host_bytes;
  const auto remark = [&](const DefaultBudget& here, bool within) {
    std::string text = "before";
    std::optional<Refusal> refusal;
    const absl::StatusOr<JobPlan> planned = PlanJobForAnywhere(job, MachineOf(here), text, refusal);
    EXPECT_TRUE(planned.ok() && !refusal) << planned.status();
    EXPECT_EQ(planned->arena_bytes, arena);
    EXPECT_EQ(planned->budget.origin, within ? "a GPU's memory" : "");
    return text;
  };
  EXPECT_EQ(remark(Here(arena, host), true), "");
  const std::string needs = absl::StrCat("needs ", FormatBytes(arena), " per rank, budget ", FormatBytes(arena - 1),
                                         " (a GPU's memory), 1 B too little");
  const std::string offloads = absl::StrCat("offloads ", FormatBytes(host), " to host memory per rank, host budget ",
                                            FormatBytes(host - 1), " (a machine's memory), 1 B too little");
  // Returns what a run on this machine is refused with, ways out included.
  const auto refused = [&](const DefaultBudget& here, const std::string& missing) {
    std::string text(PlanJob(job, MachineOf(here)).status().message());
    text = absl::StrReplaceAll(
        text, {{"; memory.budget_bytes sets another", ""}, {"; memory.host_budget_bytes sets another", ""}});
    EXPECT_TRUE(absl::StartsWith(text, absl::StrCat(missing, "; fits with "))) << text;
    return text;
  };
  EXPECT_EQ(remark(Here(arena - 1, host), false),
            absl::StrCat("This machine is too small for the job: it ", refused(Here(arena - 1, host), needs),
                         ".\nIt was planned without that limit; set memory.budget_bytes to what a rank has on the "
                         "machine where the job will run.\n"));
  EXPECT_EQ(remark(Here(arena, host - 1), false),
            absl::StrCat("This machine is too small for the job: it ", refused(Here(arena, host - 1), offloads),
                         ".\nIt was planned without that limit; set memory.host_budget_bytes to what a rank has on "
                         "the machine where the job will run.\n"));
  EXPECT_EQ(remark(Here(arena - 1, host - 1), false),
            absl::StrCat("This machine is too small for the job: it ",
                         refused(Here(arena - 1, host - 1), absl::StrCat(needs, ", and ", offloads)),
                         ".\nIt was planned without that limit; set memory.budget_bytes and memory.host_budget_bytes "
                         "to what a rank has on the machine where the job will run.\n"));
  EXPECT_EQ(
      remark([](int64_t) -> absl::StatusOr<Budget> { return absl::FailedPreconditionError("there is no GPU"); }, false),
      "This machine cannot run the job: there is no GPU.\nIt was planned without a limit; set "
      "memory.budget_bytes to what a rank has on the machine where the job will run.\n");
}

TEST(PlanJobForAnywhere, WhatTheJobNamesCountsAndHereDoesNot) {
  Job job = OffloadingJob(Accumulation::kLayered);
  const int64_t arena = Plan(job).arena_bytes, host = Plan(job).train.memory.host_bytes;
  std::string remark;
  std::optional<Refusal> refusal;
  job.memory.budget_bytes = arena;
  job.memory.host_budget_bytes = host;
  EXPECT_TRUE(PlanJobForAnywhere(job, MachineOf(Here(1, 1)), remark, refusal).ok());
  EXPECT_EQ(remark, "");
  // The job sets only one of the two limits.
  job.memory.host_budget_bytes = 0;
  EXPECT_TRUE(PlanJobForAnywhere(job, MachineOf(Here(1, host - 1)), remark, refusal).ok());
  EXPECT_FALSE(refusal);
  EXPECT_TRUE(absl::StartsWith(remark, "This machine is too small for the job: it offloads ")) << remark;
  job.memory.host_budget_bytes = host - 1;
  const absl::StatusOr<JobPlan> plan = PlanJobForAnywhere(job, MachineOf(Here(arena, host)), remark, refusal);
  ASSERT_TRUE(plan.ok() && refusal) << plan.status();
  EXPECT_EQ(remark, "");
  EXPECT_EQ(refusal->cost.host_bytes, host);
  EXPECT_EQ(plan->arena_bytes, arena);
}

// With AUTO, no accumulation fits. The remark names the one that exceeds the limits by the fewest bytes.
TEST(PlanJobForAnywhere, TheScheduleThatLacksLeastIsTheOneToldOf) {
  const JobPlan layered = Plan(OffloadingJob(Accumulation::kLayered)),
                sharded = Plan(OffloadingJob(Accumulation::kSharded));
  ASSERT_LT(sharded.train.memory.host_bytes, layered.train.memory.host_bytes);
  Job job = OffloadingJob(Accumulation::kAuto);
  job.memory.budget_bytes = 0;
  std::string remark;
  std::optional<Refusal> refusal;
  const absl::StatusOr<JobPlan> plan =
      PlanJobForAnywhere(job, MachineOf(Here(sharded.arena_bytes - 1, 1)), remark, refusal);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(absl::StrContains(remark, absl::StrCat("offloads ", FormatBytes(sharded.train.memory.host_bytes),
                                                     " to host memory per rank, host budget 1 B (a machine's memory)")))
      << remark;
  EXPECT_FALSE(absl::StrContains(remark, FormatBytes(layered.train.memory.host_bytes))) << remark;
}

// A job that does not fit was refused without a plan, which is when people need to see where the bytes go. Its plan is
// that of the same job under a budget that is just large enough.
TEST(PlanJobOfAnySize, TheRefusedPlanIsThatOfASufficientBudget) {
  for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    Job job = SmallDecoderJob(false);
    job.sharding.accumulation = accumulation;
    job.memory.budget_bytes = 1000;
    std::optional<Refusal> refusal;
    const absl::StatusOr<JobPlan> refused = PlanJobOfAnySize(job, MachineOf(), refusal);
    ASSERT_TRUE(refused.ok() && refusal) << refused.status();
    EXPECT_EQ(refusal->cost.arena_bytes, refused->arena_bytes);
    EXPECT_EQ(refusal->budget.bytes, 1000);
    EXPECT_EQ(PlanJob(job, MachineOf()).status().message(), RefusalText(*refusal));
    job.memory.budget_bytes = refused->arena_bytes;
    const absl::StatusOr<JobPlan> fits = PlanJobOfAnySize(job, MachineOf(), refusal);
    ASSERT_TRUE(fits.ok()) << fits.status();
    EXPECT_FALSE(refusal);
    EXPECT_EQ(fits->arena_bytes, refused->arena_bytes);
    EXPECT_EQ(fits->train.memory.addresses, refused->train.memory.addresses);
  }
}

TEST(Hostile, SizesBeyondAnyMachineAreRefused) {
  Job job = SmallDecoderJob(false);
  job.batch.micro_batch = 1 << 20;
  job.batch.sequence_length = 1 << 24;
  std::get<DecoderConfig>(job.model).hidden = 1 << 26;
  EXPECT_EQ(PlanJob(job, MachineOf()).status().code(), absl::StatusCode::kInvalidArgument);

  // So many tokens that the chunks of the loss would be more instructions than a program can have.
  job = SmallDecoderJob(false);
  job.batch.sequence_length = 1 << 24;
  job.memory.loss_chunk_tokens = 1;
  EXPECT_EQ(PlanJob(job, MachineOf()).status().code(), absl::StatusCode::kInvalidArgument);

  job = SmallDecoderJob(false);
  std::get<DecoderConfig>(job.model).layers = 1 << 16;
  EXPECT_EQ(PlanJob(job, MachineOf()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Hostile, ManyMicroBatchesOnlyRuleOutLayered) {
  Job job = SmallDecoderJob(false);
  job.batch.global_batch = int64_t{1} << 58;
  const JobPlan plan = Plan(job);
  EXPECT_NE(plan.options.accumulation, Accumulation::kLayered);
  ASSERT_FALSE(plan.candidates[2].status.ok());
  // What AUTO passes over is said with the error, and was once only called too large, whatever the error was.
  EXPECT_TRUE(absl::StrContains(plan.accumulation_reason,
                                absl::StrCat("LAYERED: cannot be compiled, ", plan.candidates[2].status.message())))
      << plan.accumulation_reason;
}

TEST(Hostile, AnUnknownVocabularyIsRefused) {
  Job job = SmallDecoderJob(false);
  std::get<DecoderConfig>(job.model).vocabulary = 0;
  const absl::Status status = PlanJob(job, MachineOf()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "model.decoder.vocabulary")) << status;
}

}  // namespace
}  // namespace shale
