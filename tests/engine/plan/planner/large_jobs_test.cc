// Tests the plans of full fine-tuning of large models on few GPUs, to the byte: what fits, and the arithmetic of what
// does not. The ops need what they need on a GPU, but nothing runs.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/plan/config/fields.h"
#include "engine/plan/planner/summary.h"
#include "engine/run/backends/cuda_planning.h"
#include "engine/strings/printing.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cublaslt/tuning_table.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "kernels/cuda/planned_ops.h"
#include "kernels/ops/attention.h"
#include "kernels/reference/reference_ops.h"

namespace shale {
namespace {

std::unique_ptr<Ops> CreateOpsWith(const cuda::CudnnAttentionOptions& attention) {
  const auto no_library = [] {
    return absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>>(absl::UnimplementedError("not to be loaded"));
  };
  return CreatePlannedCudaOps({.matmul_workspace_bytes = cuda::kMatMulWorkspaceBytes,
                               .attention = cuda::CreateCudnnAttention(no_library, attention),
                               .host = CreateReferenceOps()});
}

// Plans what a job needs, without the workspace that attention takes where there is room for it.
std::unique_ptr<Ops> CreateSizedOps(int64_t) { return CreateOpsWith({.grows = false}); }

// Six bytes a parameter besides the gradients: 16-bit weights, the lower 16 bits of their masters, two 8-bit moments.
const std::vector<std::string> kSixBytes = {"optimizer.rule=ADAMW_8BIT", "precision.master=SPLIT"};
// optimizer.state LEAN with AdamW: 16-bit weights and moments, in a job that names its masters.
const std::vector<std::string> kLean = {"precision.master=NONE", "optimizer.moments=BF16"};
// Keeps only the weights on the GPU between updates.
const std::vector<std::string> kStateOnHost = {"memory.offload_state=[MOMENTS, MASTERS]",
                                               "memory.host_budget_bytes=100000000000"};
// No gradient outlives the backward of its unit.
const std::vector<std::string> kInBackward = {"optimizer.update=IN_BACKWARD", "optimizer.clipping=PER_UNIT",
                                              "optimizer.non_finite=SKIP"};
const std::vector<std::string> kSqrtSegments = {"activation_checkpointing.segments=SQRT"};

// Plans a job of tools/jobs with the given settings, one sequence for each rank in a step.
absl::StatusOr<ResolvedJob> Resolve(const std::string& name, int64_t ranks,
                                    const std::vector<std::vector<std::string>>& sets,
                                    int64_t budget_bytes = 80'000'000'000) {
  std::vector<std::string> settings = {"runtime.device=CUDA", absl::StrCat("sharding.ranks=", ranks),
                                       absl::StrCat("batch.global_batch=", ranks), "batch.micro_batch=1",
                                       absl::StrCat("memory.budget_bytes=", budget_bytes)};
  for (const std::vector<std::string>& set : sets) settings.insert(settings.end(), set.begin(), set.end());
  const absl::StatusOr<Job> job = LoadJob(absl::StrCat("tools/jobs/", name, ".textproto"), settings);
  if (!job.ok()) return job.status();
  const absl::StatusOr<DataFacts> data = DataFactsForPlanning(*job);
  if (!data.ok()) return data.status();
  return ResolveJob(*job, *data, {.create_ops = CreateSizedOps});
}

// Checks that the job fits 80 GB and needs exactly `bytes`.
void ExpectFits(int64_t bytes, const absl::StatusOr<ResolvedJob>& resolved) {
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->plan.options.micro_batches, 1);
  EXPECT_EQ(resolved->plan.arena_bytes, bytes) << FormatBytes(resolved->plan.arena_bytes);
  EXPECT_LE(resolved->plan.arena_bytes, 80'000'000'000);
}

// Checks that the job is refused for its memory, and that the message starts with `arithmetic`.
void ExpectRefused(const std::string& arithmetic, const absl::StatusOr<ResolvedJob>& resolved) {
  EXPECT_EQ(resolved.status().code(), absl::StatusCode::kResourceExhausted) << resolved.status();
  EXPECT_TRUE(absl::StartsWith(resolved.status().message(), arithmetic)) << resolved.status();
}

TEST(LargeJobs, Llama2Of7BOnOneGpu) {
  ExpectFits(43'097'434'624, Resolve("llama2_7b", 1, {kSixBytes, kInBackward}));
  ExpectFits(67'677'086'984, Resolve("llama2_7b", 1, {kSixBytes}));
  ExpectFits(67'466'502'920, Resolve("llama2_7b", 1, {kLean}));
  ExpectFits(42'886'850'560, Resolve("llama2_7b", 1, {kLean, kInBackward}));
  // Gradients that add up over eight micro-batches.
  const std::vector<std::string> eight = {"batch.global_batch=8", "sharding.accumulation=SHARDED"};
  const auto arena_bytes = [&](const std::vector<std::string>& gradients) {
    const absl::StatusOr<ResolvedJob> resolved = Resolve("llama2_7b", 1, {kLean, eight, gradients});
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    return resolved.ok() ? resolved->plan.arena_bytes : 0;
  };
  EXPECT_EQ(arena_bytes({}), 69'030'978'816);
  EXPECT_EQ(arena_bytes({"precision.gradient_shards=BF16"}), 56'363'681'280);
  // Weights of 16 bits, and masters, two moments and gradients of 32 bits are 18 bytes a parameter.
  ExpectRefused("needs 113 GiB per rank, budget 74.5 GiB, 38.5 GiB too little; ", Resolve("llama2_7b", 1, {}));
}

// With AdamW, fp32 masters and fp32 moments, updated on the host.
TEST(LargeJobs, Llama2Of7BUpdatedOnTheHost) {
  const std::vector<std::string> on_host = {"optimizer.device=HOST", "memory.host_budget_bytes=200000000000"};
  const absl::StatusOr<ResolvedJob> after = Resolve("llama2_7b", 1, {on_host}),
                                    in_backward = Resolve("llama2_7b", 1, {on_host, kInBackward});
  ExpectFits(40'512'840'456, after);
  ExpectFits(16'709'166'856, in_backward);
  ASSERT_TRUE(after.ok() && in_backward.ok());
  EXPECT_EQ(after->plan.train.memory.host_bytes, 95'956'885'524);
  EXPECT_EQ(in_backward->plan.train.memory.host_bytes, 95'147'352'084);
  const OffloadSummary moves = SummarizeOffload(in_backward->plan.train.step.program);
  EXPECT_EQ(moves.gradient_bytes, 26'953'662'464);
  EXPECT_EQ(moves.state_fetched_bytes, 13'476'831'232);
}

// The matrices of frozen blocks in 4 bits, and little that trains.
TEST(LargeJobs, FrozenWeightsIn4BitsOnOneSmallGpu) {
  const std::vector<std::string> nf4 = {"optimizer.frozen_weights=NF4", "batch.sequence_length=2048"},
                                 norms = {"optimizer.train_only=*norm*"},
                                 last_block = {"optimizer.train_only=blocks.31.*"};
  const int64_t eight = int64_t{8} << 30, thirty_two = int64_t{32} << 30;
  ExpectFits(5'098'923'008, Resolve("llama2_7b", 1, {nf4, norms}, eight));
  ExpectFits(6'112'961'792, Resolve("llama2_7b", 1, {nf4, last_block, kSixBytes}, eight));
  ExpectFits(25'875'743'496, Resolve("falcon_40b", 1, {nf4, norms}, thirty_two));
}

// QLoRA: adapters train beside matrices in 4 bits. README.md has a table of these plans.
TEST(LargeJobs, AdaptersOfABaseIn4BitsOnOneSmallGpu) {
  const std::vector<std::string> sequence = {"batch.sequence_length=2048"}, adapter = {"model.adapter={rank: 16}"},
                                 nf4 = {"optimizer.frozen_weights=NF4"};
  ExpectFits(5'722'333'960, Resolve("llama2_7b", 1, {sequence, adapter, nf4}, int64_t{8} << 30));
  ExpectFits(27'548'812'040, Resolve("falcon_40b", 1, {sequence, adapter, nf4}, int64_t{32} << 30));
  // With the base in bf16, and full fine-tuning, where there is room for them.
  const auto needs = [&](const std::string& name, const std::vector<std::vector<std::string>>& sets) {
    const absl::StatusOr<ResolvedJob> resolved = Resolve(name, 1, sets, int64_t{1} << 40);
    return resolved.ok() ? FormatBytes(resolved->plan.arena_bytes) : resolved.status().ToString();
  };
  EXPECT_EQ(needs("llama2_7b", {sequence, adapter}), "13.9 GiB");
  EXPECT_EQ(needs("falcon_40b", {sequence, adapter}), "80.7 GiB");
  EXPECT_EQ(needs("llama2_7b", {sequence}), "113 GiB");
  EXPECT_EQ(needs("falcon_40b", {sequence}), "693 GiB");
}

TEST(LargeJobs, Falcon40BOnFourAndEightGpus) {
  ExpectFits(74'919'730'688, Resolve("falcon_40b", 4, {kSixBytes, kInBackward}));
  const absl::StatusOr<ResolvedJob> refused = Resolve("falcon_40b", 4, {kSixBytes});
  ExpectRefused("needs 103 GiB per rank, budget 74.5 GiB, 28.7 GiB too little; ", refused);
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "optimizer.update=IN_BACKWARD with ")) << refused.status();
  ExpectFits(43'780'926'976, Resolve("falcon_40b", 8, {kSixBytes, kInBackward}));
  ExpectFits(59'734'854'920, Resolve("falcon_40b", 8, {kSixBytes}));
}

TEST(LargeJobs, Llama2Of70BOnEightGpus) {
  const absl::StatusOr<ResolvedJob> fits = Resolve("llama2_70b", 8, {kSixBytes, kInBackward});
  ExpectFits(69'165'270'280, fits);
  ASSERT_TRUE(fits.ok());
  EXPECT_EQ(CountParameters(fits->plan.train.graph), 68'976'648'192);
  ExpectRefused("needs 90.4 GiB per rank, budget 74.5 GiB, 15.9 GiB too little; ",
                Resolve("llama2_70b", 8, {kSixBytes}));
}

// Six bytes of each of 69 billion parameters are 414 GB. That is more than eight GPUs of 40 GB have, before the first
// activation.
TEST(LargeJobs, Llama2Of70BDoesNotFitWhereItsStateDoesNot) {
  ExpectRefused("needs 64.0 GiB per rank, budget 37.3 GiB, 26.8 GiB too little; ",
                Resolve("llama2_70b", 8, {kSixBytes, kInBackward}, 40'000'000'000));
}

// Of the six bytes, four lie in host memory.
TEST(LargeJobs, Llama2Of70BFitsThereWithItsStateInHostMemory) {
  const absl::StatusOr<ResolvedJob> four = Resolve("llama2_70b", 4, {kSixBytes, kInBackward, kStateOnHost});
  ExpectFits(52'934'483'208, four);
  ASSERT_TRUE(four.ok());
  EXPECT_EQ(four->plan.train.memory.host_bytes, 69'515'559'200);
  ExpectFits(34'838'639'880, Resolve("llama2_70b", 8, {kSixBytes, kInBackward, kStateOnHost}, 40'000'000'000));
}

// LAYERED, K = 16, BLOCK: the arena without offload, and with it.
TEST(LargeJobs, Qwen25Of7BOffloadsActivations) {
  const auto resolve = [](const std::string& offload) {
    const absl::StatusOr<Job> job = LoadJob(
        "tools/jobs/qwen2_5_7b.textproto",
        {"runtime.device=CUDA", "memory.budget_bytes=80000000000", "memory.host_budget_bytes=80000000000", offload});
    return ResolveJob(*job, *DataFactsForPlanning(*job), {.create_ops = CreateSizedOps});
  };
  const absl::StatusOr<ResolvedJob> on_device = resolve("memory.offload=[]"), offloaded = resolve("memory.offload=*");
  ASSERT_TRUE(on_device.ok() && offloaded.ok()) << on_device.status() << offloaded.status();
  EXPECT_EQ(on_device->plan.arena_bytes, 22'194'190'344) << FormatBytes(on_device->plan.arena_bytes);
  EXPECT_EQ(offloaded->plan.arena_bytes, 9'071'826'952) << FormatBytes(offloaded->plan.arena_bytes);
  EXPECT_EQ(offloaded->plan.train.memory.host_bytes, 13'153'337'344)
      << FormatBytes(offloaded->plan.train.memory.host_bytes);
}

// The workspace of attention is as large as its job says, in whole groups of heads or whole sequences, and the plan
// counts it to the byte. A job that says nothing gets what makes it fast, if the budget has room for that, and fits all
// the same where it has none.
TEST(LargeJobs, AttentionHasTheWorkspaceOfItsJob) {
  const auto plan = [](const std::vector<std::string>& more) {
    std::vector<std::string> settings = {"runtime.device=CUDA",
                                         "sharding.ranks=1",
                                         "batch.micro_batch=4",
                                         "batch.global_batch=4",
                                         "precision.compute=BF16",
                                         "batch.sequence_length=4096",
                                         "memory.budget_bytes=200000000000"};
    settings.insert(settings.end(), more.begin(), more.end());
    const absl::StatusOr<Job> job = LoadJob("tools/jobs/qwen2_5_0_5b.textproto", settings);
    EXPECT_TRUE(job.ok()) << job.status();
    const auto create_ops = [&](int64_t) { return CreateOpsWith(AttentionOptionsOf(*job)); };
    const absl::StatusOr<ResolvedJob> resolved =
        ResolveJob(*job, *DataFactsForPlanning(*job), {.create_ops = create_ops});
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    struct {
      int64_t workspace_bytes = 0, arena_bytes = 0;
    } planned;
    if (!resolved.ok()) return planned;
    for (const Instruction& instruction : resolved->plan.train.step.program.instructions) {
      const Op* op = std::get_if<Op>(&instruction.action);
      if (op == nullptr || op->As<AttentionBackward>() == nullptr) continue;
      planned.workspace_bytes = instruction.scratch.extent_bytes();
    }
    planned.arena_bytes = resolved->plan.arena_bytes;
    return planned;
  };
  // Seven heads share the keys of each of two groups. A head keeps a sum of each row, d_k, d_v and ds.
  constexpr int64_t kGroup = 7 * (4 * 4096 + 4 * 4096 * 64 + 2 * 4096 * 4096);
  const auto usual = plan({"runtime.attention_workspace_bytes=268435456"});
  EXPECT_EQ(usual.workspace_bytes, kGroup + 256);
  struct Case {
    int64_t setting, groups;
  };
  std::map<int64_t, int64_t> arenas;  // By groups.
  for (const Case& c : {Case{0, 1}, Case{2 * kGroup + 255, 1}, Case{2 * kGroup + 256, 2}, Case{int64_t{1} << 30, 4},
                        Case{int64_t{2} << 30, 8}}) {
    SCOPED_TRACE(c.setting);
    const auto planned = plan({absl::StrCat("runtime.attention_workspace_bytes=", c.setting)});
    EXPECT_EQ(planned.workspace_bytes, c.groups * kGroup + 256);
    EXPECT_LE(planned.arena_bytes - usual.arena_bytes, (c.groups - 1) * kGroup);
    arenas[c.groups] = planned.arena_bytes;
  }
  EXPECT_EQ(arenas[1], usual.arena_bytes);
  // With much workspace, the peak of the step is where attention uses it.
  EXPECT_EQ(arenas[8] - arenas[4], 4 * kGroup);

  const auto with_budget = [&](int64_t bytes) { return plan({absl::StrCat("memory.budget_bytes=", bytes)}); };
  const auto automatic = plan({});
  EXPECT_EQ(automatic.workspace_bytes, 8 * kGroup + 256);
  EXPECT_EQ(automatic.arena_bytes, arenas[8]);
  // A 32nd of this budget holds three groups, of which two are a sequence.
  EXPECT_EQ(with_budget(32 * 3 * kGroup).workspace_bytes, 2 * kGroup + 256);
  EXPECT_EQ(with_budget(usual.arena_bytes).workspace_bytes, kGroup + 256);
  EXPECT_EQ(with_budget(usual.arena_bytes).arena_bytes, usual.arena_bytes);
}

TEST(LargeJobs, TheSettingOfTheWorkspaceIsThatOfTheKernels) {
  EXPECT_EQ(AttentionOptionsOf(Job()).workspace_bytes, cuda::CudnnAttentionOptions().workspace_bytes);
  EXPECT_EQ(FactsOf(*FindField("runtime.attention_workspace_bytes")).max(), cuda::kLargestWorkspaceBytes);
}

// At the peak are the gradients of a block in backward, and those of the block after it, which are sent, both in bf16:
// the arithmetic of the table in tools/manual/gradients.md. The number of blocks does not change it. Shards are padded.
TEST(LargeJobs, GradientsOfLlama3Of405BThatLeaveInBf16TakeTwoBytes) {
  constexpr int64_t kWidth = 16384, kHidden = 53248, kKeys = 8 * 128;
  constexpr int64_t kBlock = kWidth * (2 * kWidth + 2 * kKeys + 3 * kHidden + 2);
  const auto resolve = [](const char* reduce) {
    return Resolve("llama3_405b", 2048,
                   {{"model.decoder.layers=4", "sharding.accumulation=SHARDED", "batch.global_batch=16384",
                     absl::StrCat("precision.reduce=", reduce)}});
  };
  const absl::StatusOr<ResolvedJob> wide = resolve("FP32"), narrow = resolve("BF16");
  ASSERT_TRUE(wide.ok() && narrow.ok()) << wide.status() << narrow.status();
  std::map<std::string, double> of_parameter;  // Bytes for each parameter of a block.
  for (const Buffer& buffer : narrow->plan.train.step.program.buffers) {
    double& most = of_parameter[buffer.name];
    most = std::max(most, static_cast<double>(buffer.slot_bytes) / kBlock);
  }
  // Of gate and up projection, an eighth of the block would be 24,323 rows: five pieces, in multiples of 256 rows.
  EXPECT_EQ(of_parameter.count("blocks.2.unit_gradient"), 0);
  EXPECT_NEAR(of_parameter.at("blocks.2.unit_gradient.piece"), 4.0 * 21504 * kWidth / kBlock, 0.001);
  EXPECT_NEAR(of_parameter.at("blocks.2.unit_gradient.rest"), 0, 0.001);
  EXPECT_NEAR(of_parameter.at("blocks.2.gradient.sent"), 2, 0.001);
  EXPECT_NEAR(of_parameter.at("blocks.3.gradient.sent"), 2, 0.001);
  EXPECT_NEAR(of_parameter.at("blocks.3.gradient.received"), 0.25, 0.001);
  // At the peak is a piece of the down projection. Other buffers there differ by a few.
  const auto saved = static_cast<double>(wide->plan.arena_bytes - narrow->plan.arena_bytes);
  EXPECT_NEAR(saved / kBlock, 4 + 4 - 2 - 2 - 0.25 - 4.0 * 5632 * kHidden / kBlock, 0.1);
}

TEST(LargeJobs, Llama3Of405BOn512Gpus) {
  ExpectFits(59'429'068'296, Resolve("llama3_405b", 512, {kSqrtSegments}));
  ExpectFits(52'727'547'144, Resolve("llama3_405b", 512, {kSixBytes, kInBackward, kSqrtSegments}));
}

}  // namespace
}  // namespace shale
