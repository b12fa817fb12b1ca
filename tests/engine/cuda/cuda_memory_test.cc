// Tests that a run has taken all memory of its GPUs when it begins, and that what CheckMemory promises holds, with
// stand-ins for CUDA, NCCL and cuDNN that take memory as late as they can.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/trainer.h"
#include "engine/run/train/run.h"
#include "engine/run/train/run_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "sharding/comm/nccl/nccl.h"
#include "tests/engine/cuda/cuda_jobs.h"
#include "tests/kernels/cuda/cudnn/attention_stand_in.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tests/sharding/comm/nccl/stand_in_nccl.h"

namespace shale::testing {
namespace {

using cuda_on_host::StandInOptions;
using cuda_on_host::StandInRuntime;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kMi = int64_t{1} << 20;

// GPUs with their libraries.
struct Machine {
  explicit Machine(const StandInOptions& options, const StandInNccl::Takes& takes = {})
      : runtime(std::make_shared<StandInRuntime>(options)) {
    nccl->set_runtime(runtime.get());
    nccl->set_takes(takes);
    attention.load_module = [this] { return runtime->LoadModule("attention"); };
  }

  // A rank has a GPU each if they use NCCL, which then has windows. Otherwise all are on one GPU.
  std::unique_ptr<Backend> CreateBackend(bool with_nccl) {
    CudaBackendOptions options = OnReference(/*ranks_per_device=*/with_nccl ? 1 : 4);
    options.create_attention = [this](const CudaDeviceProperties*) {
      return cuda::CreateCudnnAttention([this] { return attention.Graphs(); });
    };
    if (with_nccl) {
      options.memory = CreateNcclMemory(nccl);
      options.create_group = [this](const GroupMembers& /*group*/, absl::Span<const int> ordinals) {
        return CreateNcclGroup(nccl, runtime, ordinals, {.windows = true});
      };
    }
    return CreateCudaBackend(runtime, std::move(options));
  }

  std::shared_ptr<StandInRuntime> runtime;
  std::shared_ptr<StandInNccl> nccl = std::make_shared<StandInNccl>();
  AttentionStandIn attention;  // Not for several ranks, which would use it at the same time.
};

class CudaMemoryTest : public CudaJobs {
 protected:
  // A job in which cuDNN computes attention, and whose collectives are in all of StandInNccl's size classes.
  Job MakeJob(std::vector<std::string> overrides) const {
    overrides.insert(overrides.end(), {"runtime.device=CUDA", "memory.budget_bytes=100000000"});
    return CudaJobs::MakeJob(overrides);
  }
  Job WithAttention(const char* graphs) const {
    return MakeJob({graphs, "sharding.ranks=1", "precision.compute=BF16", "batch.sequence_length=12",
                    "model.decoder.head_width=64", "data.evaluation_fraction=0.2"});
  }

  absl::StatusOr<std::unique_ptr<Trainer>> Create(const Job& job, const Backend& backend) {
    return Trainer::Create(job, {.backend = &backend});
  }
};

TEST_F(CudaMemoryTest, ARunTakesNothingOnceItsTrainerIsReady) {
  struct Case {
    const char* name;
    bool nccl;
    Job job;
  };
  const std::vector<Case> cases = {{"one rank", false, WithAttention("runtime.graphs=false")},
                                   {"one rank, graphs", false, WithAttention("runtime.graphs=true")},
                                   {"ranks on one GPU", false, MakeJob({"runtime.ranks_per_device=4"})},
                                   {"two GPUs", true, MakeJob({})},
                                   {"a mesh of GPUs", true, MakeJob({"sharding.ranks=4", "sharding.shard_ranks=2"})}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Machine machine({.devices = 4}, {.first_use = kMi, .window = kMi});
    const auto backend = machine.CreateBackend(c.nccl);
    auto trainer = Create(c.job, *backend);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    machine.runtime->ForbidTaking();
    const size_t built = machine.attention.built.size();
    const absl::Status status = (*trainer)->Run({});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(machine.attention.built.size(), built);
    trainer->reset();
    EXPECT_THAT(machine.runtime->misuse(), IsEmpty());
    EXPECT_THAT(machine.nccl->misuse(), IsEmpty());
    EXPECT_TRUE(machine.runtime->CheckAllReleased().ok()) << machine.runtime->CheckAllReleased();
  }
}

// With the least memory that a job is not refused with, its steps run: whatever is taken after the check fits into
// what the check leaves free. With less, the check itself refuses it.
TEST_F(CudaMemoryTest, AJobThatIsNotRefusedRuns) {
  struct Case {
    const char* name;
    bool nccl;
    int64_t graph_bytes;
    Job job;
  };
  // NCCL takes 200 MiB and more before the check, and 100 MiB for two windows after it.
  for (const Case& c : {Case{"graphs", false, 20 * kMi, WithAttention("runtime.graphs=true")},
                        Case{"two GPUs", true, 0, MakeJob({})}}) {
    SCOPED_TRACE(c.name);
    const auto start = [&](int64_t memory_bytes, int steps) -> absl::Status {
      Machine machine({.devices = 2, .memory_bytes = memory_bytes, .graph_bytes = c.graph_bytes},
                      {.first_use = 50 * kMi, .window = 50 * kMi});
      const auto backend = machine.CreateBackend(c.nccl);
      auto trainer = Create(c.job, *backend);
      if (!trainer.ok()) return trainer.status();
      for (int step = 0; step < steps; ++step) SHALE_RETURN_IF_ERROR((*trainer)->Step().status());
      EXPECT_EQ((*trainer)->devices().late_memory, "");
      return absl::OkStatus();
    };
    int64_t too_little = 0, enough = 2048 * kMi;
    while (enough - too_little > 1) {
      const int64_t middle = too_little + (enough - too_little) / 2;
      (start(middle, 0).ok() ? enough : too_little) = middle;
    }
    const absl::Status refused = start(too_little, 0);
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("must stay free for windows, graphs and what libraries"));
    const absl::Status ran = start(enough, 2);
    EXPECT_TRUE(ran.ok()) << ran;
    EXPECT_GT(enough, (c.nccl ? 456 : 256) * kMi);
  }
}

TEST_F(CudaMemoryTest, WhatIsTakenBeyondTheReserveIsToldAfterTheFirstStep) {
  Machine machine({.memory_bytes = 4096 * kMi, .graph_bytes = 100 * kMi});
  const auto backend = machine.CreateBackend(/*with_nccl=*/false);
  const auto trainer = Create(WithAttention("runtime.graphs=true"), *backend);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ((*trainer)->devices().late_memory, "");
  auto folder = RunFolder::Claim(absl::StrCat(::testing::TempDir(), "/late.", getpid()), RunFolder::Existing::kRefuse);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->Begin({}).ok());
  std::vector<std::string> lines;
  ASSERT_TRUE(TrainToEnd(**trainer, **folder, [&](absl::string_view line) { lines.emplace_back(line); }).ok());
  ASSERT_GT(lines.size(), 1u);
  EXPECT_EQ(lines[1], (*trainer)->devices().late_memory);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), (*trainer)->devices().late_memory), 1);
  EXPECT_THAT((*trainer)->devices().late_memory,
              AllOf(ContainsRegex("^[0-9]+ MiB of a device's memory were taken after it was checked \\(.*graphs [0-9]+ "
                                  "MiB.*, the first step 0 B\\), and only 256 MiB had been left free for that"),
                    ContainsRegex("lower memory.budget_bytes by [0-9]+$")));
}

TEST_F(CudaMemoryTest, ARunTellsWhoTookMemory) {
  Machine machine({.devices = 2}, {.first_use = 10 * kMi, .window = 20 * kMi});
  const auto backend = machine.CreateBackend(/*with_nccl=*/true);
  const auto trainer = Create(MakeJob({}), *backend);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_THAT((*trainer)->devices().description,
              ContainsRegex("\nmemory taken outside the arenas, the most on a device: kernels and other "
                            "programs 0 B, groups 0 B, matmuls 0 B, attention 0 B, collectives [0-9]+.0 MiB; after it "
                            "was checked: arenas beyond their bytes 4.0 KiB, windows 40.0 MiB, graphs 0 B$"));
}

}  // namespace
}  // namespace shale::testing
