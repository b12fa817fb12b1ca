#include "engine/api/plan_text.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/plan/planner/summary.h"
#include "engine/strings/printing.h"
#include "gtest/gtest.h"
#include "kernels/integers.h"
#include "tests/engine/plan/planner/planner_jobs.h"
#include "tests/engine/plan/report/report_support.h"

namespace shale {
namespace {

TEST(PlanText, NamesWhatWasDecided) {
  const Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  const std::string text = Flat(PlanText(job, plan));
  for (const std::string& part :
       {std::string("Plan of small"),
        absl::StrCat("accumulation ", ToString(plan.options.accumulation), ": ", plan.accumulation_reason),
        std::string("40 sequences of 7 tokens a step: 5 ranks x 4 micro-batches x 2 sequences"),
        absl::StrCat(WithCommas(plan.arena_bytes), " bytes"), std::string("memory")}) {
    EXPECT_TRUE(absl::StrContains(text, part)) << part << " in\n" << text;
  }
}

TEST(PlanText, NamesLeanState) {
  Job job = SmallDecoderJob(false);
  job.precision = {.compute = ComputePrecision::kBFloat16, .master = MasterWeights::kNone};
  SetLeanMoments(job.optimizer);
  const std::string text = Flat(PlanText(job, Plan(job)));
  EXPECT_TRUE(absl::StrContains(text, "bf16, no masters, stochastic rounding")) << text;
}

TEST(PlanText, NamesMatMulsInFp8AndSaysWhereTheyAreSlow) {
  Job job = SmallFloat8Job();
  const std::string on_cpu = Flat(PlanText(job, Plan(job)));
  EXPECT_TRUE(absl::StrContains(on_cpu, "fp8 matmuls in blocks with gradients in e5m2; a CPU computes them more "))
      << on_cpu;
  job.precision.fp8_gradients = Float8Gradients::kE4M3;
  job.runtime.device = DeviceType::kCuda;
  const std::string on_gpu = Flat(PlanText(job, Plan(job)));
  EXPECT_TRUE(absl::StrContains(on_gpu, "bf16, fp32 masters, fp8 matmuls in blocks with gradients in e4m3 batch"))
      << on_gpu;
  job.precision.fp8_scaling = Float8Scaling::kBlockwise;
  EXPECT_TRUE(absl::StrContains(Flat(PlanText(job, Plan(job))), "with gradients in e4m3 and blockwise scales batch"));
}

TEST(PlanText, NamesSegments) {
  Job job = SmallDecoderJob(false);
  const auto activations = [&] { return Flat(PlanText(job, Plan(job))); };
  EXPECT_FALSE(absl::StrContains(activations(), "segments"));
  job.activation_checkpointing = {.preset = CheckpointingPreset::kBlock, .segments = Segments::kSqrt};
  EXPECT_TRUE(absl::StrContains(activations(), "activations BLOCK, in segments of 2 blocks optimizer"))
      << activations();
  job.activation_checkpointing = {.first_layers = 3, .segment_blocks = 3};
  EXPECT_TRUE(absl::StrContains(
      activations(), "activations NONE for the first 3 and the last 0 blocks, in segments of 3 blocks optimizer"))
      << activations();
}

TEST(PlanText, SaysWhichRanksHoldCopies) {
  Job job = SmallDecoderJob(false);
  job.sharding.ranks = 6;
  EXPECT_FALSE(absl::StrContains(PlanText(job, Plan(job)), "hold copies"));
  job.sharding.shard_ranks = 3;
  const std::string text = Flat(PlanText(job, Plan(job)));
  EXPECT_TRUE(absl::StrContains(text,
                                "FULL_SHARD in 2 groups of 3 ranks, which hold copies of the state and sum their "
                                "gradients once a step, 1 unit gathered ahead"))
      << text;
  EXPECT_TRUE(absl::StrContains(text, " between groups")) << text;
}

TEST(PlanText, SaysWhatARankHasBesideItsArena) {
  const Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  const HostMemoryPlan& host = plan.host_memory;
  const std::string wanted =
      absl::StrCat("beside its arena a rank has ", FormatBytes(host.total_bytes()), " (",
                   WithCommas(host.total_bytes()), " bytes): 12.0 MiB of staging for checkpoints");
  EXPECT_TRUE(absl::StrContains(Flat(PlanText(job, plan)), wanted)) << PlanText(job, plan);
}

TEST(PlanText, SaysWhenUnitsAreUpdatedAndHowTheyAreClipped) {
  Job job = SmallDecoderJob(false);
  EXPECT_TRUE(absl::StrContains(
      Flat(PlanText(job, Plan(job))),
      "optimizer AdamW; gradients are clipped to a global norm of 1; all units are updated after backward"));
  job.optimizer.clipping = Clipping::kPerUnit;
  job.optimizer.update = UpdateTime::kInBackward;
  job.optimizer.non_finite = NonFinite::kSkip;
  job.memory.keep_gradients = true;
  EXPECT_TRUE(absl::StrContains(Flat(PlanText(job, Plan(job))),
                                "optimizer AdamW; the gradients of each unit are clipped to a norm of 1; each unit is "
                                "updated in backward; gradients are kept until the next step"));
}

TEST(PlanText, NamesTheRulesOfGroups) {
  Job job = SmallDecoderJob(false);
  job.optimizer.groups = {{.parameters = {"head*"}, .kind = OptimizerKind::kSgd}};
  EXPECT_TRUE(absl::StrContains(Flat(PlanText(job, Plan(job))), "optimizer AdamW, SGD for groups[0]; gradients are "))
      << PlanText(job, Plan(job));
  job.optimizer.groups[0].max_gradient_norm = 0.5;
  EXPECT_TRUE(absl::StrContains(Flat(PlanText(job, Plan(job))),
                                "gradients are clipped to a global norm of 1, those of groups[0] by themselves to "
                                "0.5; "));
}

TEST(PlanText, SaysWhichStateLiesInHostMemory) {
  Job job = SmallDecoderJob(true);
  job.runtime.device = DeviceType::kCuda;
  EXPECT_FALSE(absl::StrContains(PlanText(job, Plan(job)), "in the host memory of a rank"));
  job.memory.offload_state = {.moments = true};
  const JobPlan plan = Plan(job);
  const OffloadSummary offload = SummarizeOffload(plan.train.step.program);
  // Both directions move each moment once a step.
  EXPECT_GT(offload.state_fetched_bytes, 0);
  EXPECT_EQ(offload.state_returned_bytes, offload.state_fetched_bytes);
  EXPECT_EQ(offload.tensors, 0);
  const std::string text = PlanText(job, plan);
  EXPECT_TRUE(
      absl::StrContains(Flat(text), absl::StrCat(FormatBytes(offload.state_fetched_bytes),
                                                 " of optimizer state in the host memory of a "
                                                 "rank (MOMENTS); a step moves ",
                                                 FormatBytes(offload.state_fetched_bytes), " of it to the arena and ",
                                                 FormatBytes(offload.state_returned_bytes), " back")))
      << text;
}

TEST(PlanText, SaysWhatAnUpdateOnTheHostKeepsThereAndMoves) {
  Job job = SmallDecoderJob(true);
  job.runtime.device = DeviceType::kCuda;
  job.optimizer.device = UpdateDevice::kHost;
  const JobPlan plan = Plan(job);
  const OffloadSummary offload = SummarizeOffload(plan.train.step.program);
  int64_t own = 0;  // Elements that a rank updates.
  for (const GroupState& g : plan.train.step.state.groups) own += g.own_weight.elements();
  // fp32 weights are their own masters.
  EXPECT_EQ(offload.gradient_bytes, 4 * own);
  EXPECT_EQ(offload.state_fetched_bytes, 4 * own);
  EXPECT_EQ(offload.state_returned_bytes, 0);
  EXPECT_EQ(offload.tensors, 0);
  const std::string text = Flat(PlanText(job, plan));
  EXPECT_TRUE(absl::StrContains(text, "all units are updated after backward, on the host")) << text;
  EXPECT_TRUE(absl::StrContains(
      text,
      absl::StrCat(FormatBytes(4 * own), " of parameter shards, ", FormatBytes(8 * own),
                   " of optimizer state in the host memory of a rank (what the update on the host needs); a step "
                   "moves ",
                   FormatBytes(4 * own), " of gradients there and ", FormatBytes(4 * own), " of weights to the arena")))
      << text;
}

TEST(PlanText, SaysWhatIsOffloaded) {
  Job job = SmallDecoderJob(false);
  EXPECT_FALSE(absl::StrContains(PlanText(job, Plan(job)), "offload"));
  job.memory.offload = {"*.ffn.gate_up", "*.out"};
  job.runtime.device = DeviceType::kCuda;
  job.sharding.accumulation = Accumulation::kLayered;
  JobPlan plan = Plan(job);
  // Three blocks, each with its input, the output of attention and gate_up, for four micro-batches of 2 x 7 tokens, in
  // fp32.
  const int64_t bytes = 4 * 3 * (2 * 7 * (12 + 12 + 2 * 20) * 4);
  EXPECT_GE(plan.host_memory.offload_bytes, bytes);
  EXPECT_EQ(plan.host_memory.offload_bytes, RoundUp(plan.train.memory.host_bytes, 4096));
  std::string text = Flat(PlanText(job, plan));
  EXPECT_TRUE(absl::StrContains(
      text, absl::StrCat("offload 9 tensors of a micro-batch (*.ffn.gate_up, *.out); a step moves ", FormatBytes(bytes),
                         " of one rank to host memory and ", FormatBytes(bytes), " back")))
      << text;
  EXPECT_TRUE(absl::StrContains(
      text, absl::StrCat(", ", FormatBytes(plan.host_memory.offload_bytes), " for what is offloaded")))
      << text;
  job.memory.offload = {"*.ffn.gate_up", "*logits"};
  text = Flat(PlanText(job, Plan(job)));
  EXPECT_TRUE(absl::StrContains(text, " back; nothing for *logits")) << text;
  job.memory.offload = {"*logits"};
  plan = Plan(job);
  text = Flat(PlanText(job, plan));
  EXPECT_TRUE(absl::StrContains(text, "offload nothing: no tensor named *logits is kept for backward")) << text;
  EXPECT_FALSE(absl::StrContains(text, "for what is offloaded")) << text;
}

// Reading the folder takes a second staging buffer, which the plan once left out.
TEST(PlanText, SaysWhatReadingAFolderTakes) {
  Job job = SmallDecoderJob(false);
  EXPECT_FALSE(absl::StrContains(Flat(PlanText(job, Plan(job))), "hf_folder"));
  job.hf_folder = "/nowhere";
  EXPECT_TRUE(absl::StrContains(Flat(PlanText(job, Plan(job))), "2.0 MiB more while it reads model.hf_folder"))
      << PlanText(job, Plan(job));
}

TEST(PlanText, CountsMaskedSequences) {
  Job job = SmallDecoderJob(false);
  job.batch.global_batch = 33;
  EXPECT_TRUE(absl::StrContains(Flat(PlanText(job, Plan(job))), "of which 7 are masked"));
}

}  // namespace
}  // namespace shale
