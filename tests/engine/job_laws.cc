// Laws of whole jobs, through the embedding API: a job trains as on the CPU, and resumes from a checkpoint with the
// same bits. This is a library; each test links the backend that it tests.
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/generator.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "gtest/gtest.h"
#include "tests/engine/copied_state.h"
#include "tests/engine/reference_backend.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

struct JobCase {
  std::string name;
  std::vector<std::string> overrides;
  double tolerance;  // Of losses, compared with fp32 on the CPU.
};

class JobLaws : public ::testing::TestWithParam<JobCase> {
 protected:
  JobLaws() : path_(absl::StrCat(::testing::TempDir(), "/job_laws.", getpid(), ".", GetParam().name)) {
    std::ofstream text(path_ + ".txt");
    for (int i = 0; i < 40; ++i) text << "the " << i * i % 97 << " quick brown foxes jump over the dog.\n";
  }

  Job MakeJob(const std::vector<std::string>& overrides) const {
    absl::StatusOr<Job> job = ParseJobText(absl::StrCat(R"(
model { decoder { family: LLAMA width: 16 layers: 2 heads: 2 kv_heads: 1 hidden: 24 } }
batch { global_batch: 6 micro_batch: 1 sequence_length: 9 }
sharding { accumulation: SHARDED }
optimizer { learning_rate: 1e-2 epsilon: 1e-3 }
lr_schedule { steps: 3 warmup_steps: 1 }
checkpoint { every_steps: 1 keep_last: 9 }
memory { budget_bytes: 100000000 }
data { path: ")",
                                                        path_, ".txt\" }\n"),
                                           "job.textproto", overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : Job();
  }

  // Returns the losses of all steps. Also expects that each step used the memory that was planned.
  static std::vector<double> Losses(const Job& job, const TrainerOptions& options) {
    const absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(job, options);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    if (!trainer.ok()) return {};
    std::vector<double> losses;
    const absl::Status status = (*trainer)->Run({.on_step = [&](const StepReport& report) {
      losses.push_back(report.loss);
      EXPECT_EQ(report.peak_bytes_measured, (*trainer)->plan().train.memory.peak_bytes);
      EXPECT_EQ((*trainer)->plan().host_memory.offload_bytes > 0,
                !job.memory.offload.empty() || (*trainer)->plan().options.state_on_host().any());
      return absl::OkStatus();
    }});
    EXPECT_TRUE(status.ok()) << status;
    return losses;
  }

  // Returns the checkpoint folder of a run.
  std::string Checkpoints(absl::string_view run) const { return absl::StrCat(path_, ".", run, "/checkpoints"); }

  // Returns the logits after some context, computed from the last checkpoint of a run.
  std::vector<float> Logits(absl::string_view run) const {
    const auto create = [](const Job&) { return TestedBackend(OpsKind::kFast, /*threads=*/1); };
    const auto generator = Generator::FromRun(absl::StrCat(path_, ".", run), create);
    EXPECT_TRUE(generator.ok()) << generator.status();
    if (!generator.ok()) return {};
    const absl::StatusOr<absl::Span<const float>> logits = (*generator)->Logits({'t', 'h', 'e'});
    EXPECT_TRUE(logits.ok()) << logits.status();
    return logits.ok() ? std::vector<float>(logits->begin(), logits->end()) : std::vector<float>();
  }

  const std::string path_;
};

TEST_P(JobLaws, TrainsAsOnTheCpuAndGoesOnFromACheckpointWithTheSameBits) {
  const Job job = MakeJob(GetParam().overrides);
  Job on_cpu = job;
  on_cpu.runtime = {};
  on_cpu.precision = {};
  on_cpu.memory.offload = {};
  on_cpu.memory.offload_state = {};
  on_cpu.optimizer.device = UpdateDevice::kSame;
  const std::vector<double> cpu = Losses(on_cpu, {.backend = CreateReferenceBackend().get()});
  const auto tested = TestedBackend(OpsKind::kFast, /*threads=*/1);
  const std::vector<double> straight = Losses(job, {.backend = tested.get(), .checkpoint_folder = Checkpoints("run")});
  ASSERT_EQ(cpu.size(), 3);
  ASSERT_EQ(straight.size(), 3);
  for (size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(straight[i], cpu[i], GetParam().tolerance) << i;
  const std::vector<double> resumed =
      Losses(job, {.backend = tested.get(),
                   .resume = {.from = ResumeFrom::kPath, .path = Checkpoints("run") + "/step-0000000001"}});
  EXPECT_EQ(resumed, std::vector<double>(straight.begin() + 1, straight.end()));
  if (job.memory.offload_state.any() || job.optimizer.device == UpdateDevice::kHost) {
    // Where the state lies, and where it is updated, has no trace in results or in checkpoints.
    Job on_device = job;
    on_device.memory.offload_state = {};
    on_device.optimizer.device = UpdateDevice::kSame;
    EXPECT_EQ(Losses(on_device, {.backend = tested.get(), .checkpoint_folder = Checkpoints("on_device")}), straight);
    const auto resume = [&](const Job& resumed_job, absl::string_view run) {
      return Losses(resumed_job, {.backend = tested.get(),
                                  .resume = {.from = ResumeFrom::kPath,
                                             .path = absl::StrCat(Checkpoints(run), "/step-0000000001")}});
    };
    EXPECT_EQ(resume(on_device, "run"), resumed);
    EXPECT_EQ(resume(job, "on_device"), resumed);
    // Generation once refused runs with PARAMETERS in host memory: it runs them as DDP, which has no such choice.
    EXPECT_EQ(Logits("run"), Logits("on_device"));
  }
  if (!UsesGraphs(job)) return;
  Job one_by_one = job;
  one_by_one.runtime.graphs = false;
  EXPECT_EQ(Losses(one_by_one, {.backend = tested.get()}), straight) << "graphs change bits";
}

// For jobs whose state lies, or is updated, in different places and forms.
class LiveStateLaws : public JobLaws {};

TEST_P(LiveStateLaws, ItsStateCanBeCopiedByNameAndItGeneratesAsItsCheckpointDoes) {
  Job job = MakeJob(GetParam().overrides);
  job.lr_schedule.steps = 4;
  const auto tested = TestedBackend(OpsKind::kFast, /*threads=*/1);
  const auto create = [&](const Job& created) -> std::unique_ptr<Trainer> {
    auto trainer = Trainer::Create(created, {.backend = tested.get()});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    return trainer.ok() ? *std::move(trainer) : nullptr;
  };
  ExpectStateCanBeCopied(job, create);
  job.runtime.generate = true;
  auto trainer = Trainer::Create(job, {.backend = tested.get(), .checkpoint_folder = Checkpoints("live")});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  ASSERT_TRUE((*trainer)->Step().ok());
  const absl::StatusOr<absl::Span<const float>> logits = (*trainer)->generator().Logits({'t', 'h', 'e'});
  ASSERT_TRUE(logits.ok()) << logits.status();
  ASSERT_TRUE((*trainer)->SaveCheckpoint().ok());
  EXPECT_EQ(std::vector<float>(logits->begin(), logits->end()), Logits("live"));
  const absl::StatusOr<StepReport> report = (*trainer)->Step();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->peak_bytes_measured, (*trainer)->plan().arena_bytes);
}

// Tolerances: fp32 sums of some hundred terms in another order; for bf16, 8 bits of precision through three steps.
std::vector<JobCase> StateCases() {
  return {
      JobCase{"State",
              {"runtime={device: CUDA ranks_per_device: 2}", "sharding.ranks=2",
               "memory.offload_state=[MOMENTS, PARAMETERS]", "checkpoint.asynchronous=true"},
              1e-4},
      JobCase{"StateSplit",
              {"runtime={device: CUDA ranks_per_device: 4}", "sharding={ranks: 4 shard_ranks: 2}",
               "precision={compute: BF16 master: SPLIT}", "memory.offload_state=[MOMENTS, MASTERS, PARAMETERS]",
               "memory.offload=*", "checkpoint.asynchronous=false"},
              0.1},
      JobCase{"StateReplicated",
              {"runtime={device: CUDA ranks_per_device: 2}", "sharding={ranks: 2 strategy: DDP}",
               "sharding.accumulation=LAYERED", "precision.compute=BF16", "memory.offload_state=[MASTERS, MOMENTS]",
               "checkpoint.asynchronous=true"},
              0.1},
      JobCase{
          "StateGraphs", {"runtime={device: CUDA graphs: true}", "memory.offload_state=[MOMENTS, PARAMETERS]"}, 1e-4},
      JobCase{"HostUpdate",
              {"runtime={device: CUDA ranks_per_device: 2}", "sharding.ranks=2", "precision={compute: BF16}",
               "optimizer.device=HOST", "checkpoint.asynchronous=true"},
              0.1},
      JobCase{"HostUpdateGraphs",
              {"runtime={device: CUDA graphs: true}", "optimizer.device=HOST", "memory.offload=*",
               "activation_checkpointing.preset=BLOCK", "model.decoder.layers=3"},
              1e-4},
      JobCase{"Lean", {"runtime.device=CUDA", "precision.compute=BF16", "optimizer.state=LEAN"}, 0.1}};
}

constexpr auto kCaseName = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(States, JobLaws, ::testing::ValuesIn(StateCases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(States, LiveStateLaws, ::testing::ValuesIn(StateCases()), kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Jobs, JobLaws,
    ::testing::Values(
        JobCase{"OneRank", {"runtime.device=CUDA"}, 1e-4},
        JobCase{"Graphs", {"runtime={device: CUDA graphs: true}"}, 1e-4},
        JobCase{"ThreeRanks", {"runtime={device: CUDA ranks_per_device: 3}", "sharding.ranks=3"}, 1e-4},
        JobCase{
            "GroupsOfTwo", {"runtime={device: CUDA ranks_per_device: 4}", "sharding={ranks: 4 shard_ranks: 2}"}, 1e-4},
        JobCase{"Offload",
                {"runtime={device: CUDA ranks_per_device: 2}", "sharding.ranks=2", "memory.offload=*",
                 "model.decoder.layers=3"},
                1e-4},
        JobCase{"OffloadGraphs",
                {"runtime={device: CUDA graphs: true}", "activation_checkpointing.preset=BLOCK", "memory.offload=*",
                 "model.decoder.layers=3"},
                1e-4},
        JobCase{"InBackward",
                {"runtime={device: CUDA ranks_per_device: 2}", "sharding.ranks=2", "sharding.accumulation=LAYERED",
                 "optimizer.update=IN_BACKWARD", "optimizer.clipping=PER_UNIT", "optimizer.non_finite=SKIP"},
                1e-4},
        JobCase{"PreviousNorm",
                {"runtime={device: CUDA ranks_per_device: 2}", "sharding.ranks=2", "optimizer.max_gradient_norm=0.1",
                 "optimizer={update: IN_BACKWARD clipping: PREVIOUS_NORM non_finite: SKIP}",
                 "checkpoint.asynchronous=true"},
                1e-4},
        JobCase{"Packed",  // The documents are words.
                {"runtime={device: CUDA ranks_per_device: 2}", "sharding.ranks=2",
                 "data={packing: PACK document_end_token: 32}"},
                1e-4},
        JobCase{"Bf16", {"runtime.device=CUDA", "precision={compute: BF16 master: SPLIT}"}, 0.1},
        JobCase{"Fp16",
                {"runtime={device: CUDA ranks_per_device: 2}", "sharding.ranks=2", "precision.compute=FP16",
                 "optimizer.device=HOST"},
                0.1},
        // Sizes and tokens in multiples of 16; a micro-batch has scales of its own, whatever the number of ranks.
        JobCase{"Fp8",
                {"runtime={device: CUDA ranks_per_device: 2}", "sharding.ranks=2", "batch.sequence_length=16",
                 "model.decoder.hidden=32", "precision={compute: BF16 matmuls: FP8}"},
                0.1},
        JobCase{"Fp8Graphs",
                {"runtime={device: CUDA graphs: true}", "batch.sequence_length=16", "model.decoder.hidden=32",
                 "precision={compute: FP16 matmuls: FP8 fp8_gradients: E4M3}"},
                0.1},
        JobCase{"Fp8Blockwise",
                {"runtime={device: CUDA ranks_per_device: 2}", "sharding.ranks=2", "batch.sequence_length=16",
                 "model.decoder.hidden=144",
                 "precision={compute: BF16 matmuls: FP8 fp8_gradients: E4M3 fp8_scaling: BLOCKWISE}"},
                0.1},
        JobCase{"LeanGradients",
                {"runtime={device: CUDA ranks_per_device: 4}", "sharding={ranks: 4 shard_ranks: 2}",
                 "precision={compute: BF16 gradient_shards: BF16}", "optimizer.state=LEAN"},
                0.1},
        JobCase{"NarrowReduction",
                {"runtime={device: CUDA ranks_per_device: 4}", "sharding={ranks: 4 shard_ranks: 2}",
                 "precision={compute: BF16 reduce: BF16}"},
                0.1},
        JobCase{"LeanGradientsGraphs",
                {"runtime={device: CUDA graphs: true}", "precision={compute: BF16 gradient_shards: BF16}",
                 "optimizer.state=LEAN"},
                0.1},
        JobCase{"Sgd",
                {"runtime={device: CUDA ranks_per_device: 2}", "sharding.ranks=2",
                 "optimizer.epsilon=", "optimizer.rule=SGD", "optimizer.nesterov=true"},
                1e-4},
        // The last bit of a sum may change the sign that Lion takes, or the code of an 8-bit state.
        JobCase{"Lion",
                {"runtime.device=CUDA", "optimizer.epsilon=", "optimizer.rule=LION", "optimizer.learning_rate=1e-3"},
                1e-2},
        JobCase{"Groups",
                {"runtime={device: CUDA graphs: true}", "optimizer.epsilon=1e-3",
                 "optimizer.groups={parameters: \"*norm*\" rule: SGD weight_decay: 0 max_gradient_norm: 0.01}",
                 "optimizer.groups={parameters: \"blocks.1.*\" rule: LION learning_rate_factor: 0.1}"},
                1e-2},
        JobCase{"Adafactor",
                {"runtime={device: CUDA graphs: true}",
                 "optimizer.epsilon=", "optimizer={rule: ADAFACTOR learning_rate: 10 beta1: 0.5}",
                 "optimizer.groups={parameters: \"*norm*\" rule: ADAMW learning_rate_factor: 1e-3}",
                 // A small job: the kernels' long loops take their time in the emulator.
                 "model.decoder={layers: 1 width: 8 hidden: 8}", "batch={global_batch: 1 sequence_length: 5}"},
                1e-2},
        JobCase{"Muon",
                {"runtime={device: CUDA ranks_per_device: 2}", "sharding.ranks=2",
                 "optimizer.epsilon=", "optimizer={rule: MUON rate_adjustment: MATCH_RMS_ADAMW}",
                 // A small job, as above.
                 "model.decoder={layers: 1 width: 8 hidden: 8}", "batch={sequence_length: 5}"},
                1e-2},
        JobCase{"AdamW8Bit", {"runtime={device: CUDA graphs: true}", "optimizer.rule=ADAMW_8BIT"}, 1e-2},
        JobCase{"AdaptersOn4Bits",
                {"runtime={device: CUDA ranks_per_device: 3}", "sharding.ranks=3", "model.adapter={rank: 2 alpha: 4}",
                 "optimizer.frozen_weights=NF4"},
                1e-4},
        JobCase{
            "FrozenGraphs",
            {"runtime={device: CUDA graphs: true}", "optimizer.train_only=blocks.1.*", "optimizer.frozen_weights=BF16"},
            1e-4},
        // Heads of a width that cuDNN supports.
        JobCase{"WideHeads",
                {"runtime.device=CUDA", "precision.compute=BF16", "batch.sequence_length=12",
                 "model.decoder.head_width=64"},
                0.1},
        JobCase{"WideHeadsGraphs",
                {"runtime={device: CUDA graphs: true}", "precision={compute: BF16 fp32_logits: true}",
                 "batch.sequence_length=12", "model.decoder.head_width=64"},
                0.1}),
    kCaseName);

}  // namespace
}  // namespace shale::testing
