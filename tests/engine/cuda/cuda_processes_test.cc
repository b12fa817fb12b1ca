// A job on GPUs is the same job in one process and in several, which NCCL joins. The processes are threads of the test,
// with stand-ins for CUDA and NCCL. They have nothing in common but a store, their control plane and the GPUs.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/trainer.h"
#include "engine/run/backends/nccl_jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "tests/engine/cuda/cuda_jobs.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tests/sharding/comm/folder_store.h"
#include "tests/sharding/comm/nccl/stand_in_nccl.h"
#include "tests/sharding/comm/thread_processes.h"

namespace shale::testing {
namespace {

using cuda_on_host::StandInOptions;
using cuda_on_host::StandInRuntime;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 4;

struct Result {
  absl::Status status;
  std::vector<double> losses;
  int64_t peak_bytes = 0;
  std::string devices;
};

class CudaProcessesTest : public CudaJobs {
 protected:
  Job MakeJob(std::vector<std::string> overrides) const {
    overrides.insert(overrides.end(),
                     {"runtime.device=CUDA", "memory.budget_bytes=100000000", "lr_schedule.steps=2",
                      "batch={global_batch: 4 micro_batch: 1 sequence_length: 5}", "model.decoder.layers=1"});
    return CudaJobs::MakeJob(overrides);
  }

  // Runs the job on one host in so many processes. Returns the result of each.
  std::vector<Result> Run(const Job& job, int processes) {
    const auto runtime = std::make_shared<StandInRuntime>(StandInOptions{.devices = kRanks});
    const auto nccl = std::make_shared<StandInNccl>();
    nccl->set_runtime(runtime.get());
    static int runs = 0;
    const std::string folder = absl::StrCat(::testing::TempDir(), "/cuda_processes.", getpid(), ".", ++runs);
    std::filesystem::create_directories(folder);
    FolderStore store(folder);
    ThreadProcesses control(processes);
    std::vector<Result> results(processes);
    std::vector<std::thread> threads;
    for (int process = 0; process < processes; ++process) {
      threads.emplace_back([&, process] {
        const int ranks = kRanks / processes;
        CudaBackendOptions options = OnReference(/*ranks_per_device=*/1);
        options.memory = CreateNcclMemory(nccl);
        options.create_group = NcclGroups(nccl, runtime, &store, {.timeout_seconds = 60, .windows = true});
        options.share = {.ranks = ranks, .ranks_before = process * ranks, .ranks_on_host = kRanks};
        const auto backend = CreateCudaBackend(runtime, std::move(options));
        TrainerOptions trainer_options{.backend = backend.get(), .control = &control[process]};
        for (int i = 0; i < ranks; ++i) trainer_options.ranks.push_back(process * ranks + i);
        results[process] = Train(job, trainer_options);
        if (!results[process].status.ok()) control.End();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(runtime->misuse(), IsEmpty());
    EXPECT_THAT(nccl->misuse(), IsEmpty());
    EXPECT_EQ(nccl->live(), 0);
    return results;
  }

 private:
  static Result Train(const Job& job, const TrainerOptions& options) {
    Result result;
    absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(job, options);
    result.status = trainer.status();
    if (!trainer.ok()) return result;
    result.devices = (*trainer)->devices().description;
    result.status = (*trainer)->Run({.on_step = [&](const StepReport& report) {
      result.losses.push_back(report.loss);
      result.peak_bytes = report.peak_bytes_measured;
      return absl::OkStatus();
    }});
    return result;
  }
};

// In the mesh, groups of one axis are each in one process of two, and groups of the other have ranks of both.
TEST_F(CudaProcessesTest, SeveralProcessesComputeWhatOneDoesOnTheirShareOfTheGpus) {
  for (const char* sharding : {"sharding={ranks: 4 strategy: FULL_SHARD accumulation: SHARDED}",
                               "sharding={ranks: 4 shard_ranks: 2 accumulation: NO_SYNC}"}) {
    SCOPED_TRACE(sharding);
    const Job job = MakeJob({sharding});
    const Result expected = Run(job, 1)[0];
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    ASSERT_EQ(expected.losses.size(), 2);
    const std::vector<Result> results = Run(job, 2);
    for (int process = 0; process < 2; ++process) {
      const Result& result = results[process];
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.losses, expected.losses);
      EXPECT_EQ(result.peak_bytes, expected.peak_bytes);
      for (int gpu = 0; gpu < kRanks; ++gpu) {
        const bool taken = result.devices.find(absl::StrCat("GPU ", gpu, ": ")) != std::string::npos;
        EXPECT_EQ(taken, gpu / 2 == process) << result.devices;
      }
    }
  }
}

// A launcher may show each process only its own GPUs. Anything between these and all is refused.
TEST_F(CudaProcessesTest, AProcessSeesAllGpusOrItsOwn) {
  const auto budget = [](int visible) {
    CudaBackendOptions options = OnReference(/*ranks_per_device=*/1);
    options.share = {.ranks = 2, .ranks_before = 4, .ranks_on_host = 6};
    const auto runtime = std::make_shared<StandInRuntime>(StandInOptions{.devices = visible});
    const auto backend = CreateCudaBackend(runtime, std::move(options));
    const auto devices = backend->CreateDevices(2, /*synchronous=*/false);
    EXPECT_EQ(devices.status(), backend->DefaultBudget(6).status());
    if (!devices.ok()) return std::vector<std::string>{std::string(devices.status().message())};
    std::vector<std::string> first_words;
    for (const auto& device : *devices) first_words.push_back(backend->Describe({device}).substr(0, 6));
    return first_words;
  };
  EXPECT_THAT(budget(2), ElementsAre("GPU 0:", "GPU 1:"));
  EXPECT_THAT(budget(6), ElementsAre("GPU 4:", "GPU 5:"));
  EXPECT_THAT(budget(8), ElementsAre("GPU 4:", "GPU 5:"));
  EXPECT_THAT(budget(1), ElementsAre(HasSubstr("want 6 GPUs, and this process 2 of them; found 1")));
  EXPECT_THAT(budget(5), ElementsAre(HasSubstr("want 6 GPUs, and this process 2 of them; found 5")));
}

TEST_F(CudaProcessesTest, GroupsOfSeveralProcessesAreRefusedWithoutAStore) {
  const auto runtime = std::make_shared<StandInRuntime>(StandInOptions{});
  const auto nccl = std::make_shared<StandInNccl>();
  const GroupMembers group = {.name = "all", .size = 2, .places = {0}, .devices = {nullptr}};
  const absl::Status status = NcclGroups(nccl, runtime, nullptr, {})(group, {0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("group all has 2 ranks, 1 of them in this process"));
}

}  // namespace
}  // namespace shale::testing
