// Tests what the plan of a job holds, and what is refused as too large to be planned.
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
