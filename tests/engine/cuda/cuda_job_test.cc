// Tests the messages and refusals of jobs on the CUDA backend, without a GPU.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/backend.h"
#include "engine/api/trainer.h"
#include "engine/run/backends/cuda_backend.h"
#include "engine/run/backends/cuda_planning.h"
#include "engine/run/runtime/profiler_ranges.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/backends.h"
#include "kernels/cuda/cudnn/attention_rates.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "kernels/ops/attention.h"
#include "tests/engine/cuda/cuda_jobs.h"
#include "tests/kernels/cuda/cudnn/attention_stand_in.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"

namespace shale {
namespace {

using cuda_on_host::StandInOptions;
using cuda_on_host::StandInRuntime;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::OnReference;

constexpr int kRanksPerDevice = 2;  // Of jobs with the overrides kCuda.
constexpr StandInOptions kLarge = {.memory_bytes = int64_t{4} << 30};

// An attention library that declines every op.
class NoAttention : public cuda::AttentionBackend {
 public:
  bool Takes(const AttentionForward&) const override { return false; }
  bool Takes(const AttentionBackward&) const override { return false; }
  int64_t ScratchBytes(const AttentionForward&) const override { return 0; }
  int64_t ScratchBytes(const AttentionBackward&) const override { return 0; }
  absl::Status Prepare(const AttentionForward&, int64_t) override { return absl::InternalError("not taken"); }
  absl::Status Prepare(const AttentionBackward&, int64_t) override { return absl::InternalError("not taken"); }
  absl::Status Enqueue(const AttentionForward&, Scratch, cuda::StreamHandle) override {
    return absl::InternalError("not taken");
  }
  absl::Status Enqueue(const AttentionBackward&, Scratch, cuda::StreamHandle) override {
    return absl::InternalError("not taken");
  }
};

CudaBackendOptions Options(int ranks_per_device) {
  CudaBackendOptions options = OnReference(ranks_per_device);
  options.describe_libraries = [] { return std::string("matmuls by the reference"); };
  return options;
}

std::unique_ptr<Backend> OnStandIn(std::shared_ptr<StandInRuntime> runtime, int ranks_per_device) {
  return CreateCudaBackend(std::move(runtime), Options(ranks_per_device));
}

class CudaJobTest : public testing::CudaJobs {
 protected:
  const std::vector<std::string> kCuda = {"runtime.device=CUDA", "runtime.ranks_per_device=2"};
};

TEST_F(CudaJobTest, TellsWhatItRunsOn) {
  const auto backend = OnStandIn(std::make_shared<StandInRuntime>(kLarge), kRanksPerDevice);
  const auto trainer = Trainer::Create(MakeJob(kCuda), {.backend = backend.get()});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_THAT((*trainer)->devices().description,
              AllOf(HasSubstr("GPU 0: "), HasSubstr(" in use outside the arenas"),
                    HasSubstr("\nmatmuls by the reference"), Not(HasSubstr("own kernels"))));
}

TEST_F(CudaJobTest, TellsOfAttentionThatTheLibraryDoesNotTake) {
  CudaBackendOptions options = Options(kRanksPerDevice);
  options.create_attention = [](const CudaDeviceProperties*) { return std::make_unique<NoAttention>(); };
  const auto backend = CreateCudaBackend(std::make_shared<StandInRuntime>(kLarge), std::move(options));
  const auto trainer = Trainer::Create(MakeJob(kCuda), {.backend = backend.get()});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_THAT((*trainer)->devices().description, HasSubstr("\nattention by the engine's own kernels, because cuDNN "
                                                           "does not support it or was measured to be slower: f32 1 "
                                                           "x 9 positions, 2 heads of width 8 (1 of keys)"));
}

// Graphs are captured when the trainer is created. Steps launch them, without calling the library.
TEST_F(CudaJobTest, AttentionOfALibraryIsCapturedInGraphs) {
  testing::AttentionStandIn library;
  CudaBackendOptions options = Options(1);
  options.create_attention = [&](const CudaDeviceProperties*) {
    return cuda::CreateCudnnAttention([&] { return library.Graphs(); });
  };
  const auto backend = CreateCudaBackend(std::make_shared<StandInRuntime>(kLarge), std::move(options));
  const Job job = MakeJob({"runtime={device: CUDA graphs: true}", "sharding.ranks=1", "precision.compute=BF16",
                           "batch.sequence_length=12", "model.decoder.head_width=64"});
  const auto trainer = Trainer::Create(job, {.backend = backend.get()});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const size_t calls = library.calls.size();
  EXPECT_GT(calls, 0);
  const absl::Status status = (*trainer)->Run({});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(library.calls.size(), calls);
}

// Fewer bytes divide gradients of attention into more launches. The plan knows the bytes, and the bits stay the same.
TEST_F(CudaJobTest, TheWorkspaceOfAttentionIsThatOfTheJob) {
  struct Outcome {
    size_t launches = 0;
    int64_t peak_bytes = 0;
    std::vector<double> losses;
  };
  const auto train = [&](const std::string& setting, std::optional<cuda::CudnnAttentionOptions> attention = {}) {
    Outcome outcome;
    // A graph would launch in every step what was called once.
    const Job job = MakeJob({"runtime={device: CUDA graphs: false}", "sharding.ranks=1", "precision.compute=BF16",
                             "batch={global_batch: 3 micro_batch: 3 sequence_length: 12}",
                             "model.decoder={head_width: 64 heads: 4 kv_heads: 2}", setting});
    if (!attention) attention = AttentionOptionsOf(job);
    testing::AttentionStandIn library;
    CudaBackendOptions options = Options(1);
    options.create_attention = [&](const CudaDeviceProperties*) {
      return cuda::CreateCudnnAttention([&] { return library.Graphs(); }, *attention);
    };
    const auto backend = CreateCudaBackend(std::make_shared<StandInRuntime>(kLarge), std::move(options));
    const auto trainer = Trainer::Create(job, {.backend = backend.get()});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    if (!trainer.ok()) return outcome;
    library.calls.clear();
    for (int i = 0; i < 2; ++i) {
      const absl::StatusOr<StepReport> step = (*trainer)->Step();
      EXPECT_TRUE(step.ok()) << step.status();
      if (!step.ok()) return outcome;
      outcome.losses.push_back(step->loss);
      outcome.peak_bytes = step->peak_bytes_measured;
      EXPECT_EQ(step->peak_bytes_measured, step->peak_bytes_planned);
    }
    for (const testing::AttentionCall& call : library.calls) outcome.launches += call.key.backward;
    return outcome;
  };
  // Two steps of two blocks, each with three sequences of two groups of heads.
  constexpr int64_t kGroup = 2 * (4 * 12 + 4 * 12 * 64 + 2 * 64 * 128);
  const auto with = [&](int64_t bytes) { return train(absl::StrCat("runtime.attention_workspace_bytes=", bytes)); };
  const Outcome by_group = with(0), by_sequence = with(2 * kGroup + 256), at_once = with(int64_t{256} << 20);
  EXPECT_EQ(by_group.launches, 4 * 6);
  EXPECT_EQ(by_sequence.launches, 4 * 3);
  EXPECT_EQ(at_once.launches, 4 * 1);
  EXPECT_EQ(by_group.losses, at_once.losses);
  EXPECT_EQ(by_sequence.losses, at_once.losses);
  EXPECT_LT(by_group.peak_bytes, by_sequence.peak_bytes);
  EXPECT_LT(by_sequence.peak_bytes, at_once.peak_bytes);

  // Of a job that leaves it to the plan, attention needs the least and takes the most, if there is room.
  const auto within = [&](int64_t budget_bytes) {
    return train(absl::StrCat("memory.budget_bytes=", budget_bytes), cuda::CudnnAttentionOptions{.workspace_bytes = 0});
  };
  const Outcome spacious = within(int64_t{1} << 30), tight = within(by_group.peak_bytes);
  EXPECT_EQ(spacious.launches, at_once.launches);
  EXPECT_EQ(spacious.peak_bytes, at_once.peak_bytes);
  EXPECT_EQ(tight.launches, by_group.launches);
  EXPECT_EQ(tight.peak_bytes, by_group.peak_bytes);
  EXPECT_EQ(spacious.losses, at_once.losses);
  EXPECT_EQ(tight.losses, at_once.losses);
}

// Where our own kernels were measured to be faster they compute, the plan counts their scratch, and the run says so.
TEST_F(CudaJobTest, TheFasterAttentionIsPlannedAndRun) {
  struct Outcome {
    std::set<bool> by_library;  // Directions.
    int64_t peak_bytes = 0;
    double loss = 0;
    std::string description;
  };
  const auto train = [&](const std::string& rows, const std::string& setting) {
    Outcome outcome;
    const Job job = MakeJob({"runtime={device: CUDA graphs: false}", "sharding.ranks=1", "precision.compute=BF16",
                             "batch={global_batch: 3 micro_batch: 3 sequence_length: 12}",
                             "model.decoder={head_width: 64 heads: 4 kv_heads: 2}", setting});
    const auto rates = cuda::AttentionRates::Parse("shale attention rates 1\n" + rows);
    EXPECT_TRUE(rates.ok()) << rates.status();
    testing::AttentionStandIn library;
    CudaBackendOptions options = Options(1);
    if (job.runtime.cudnn_attention.value_or(true)) {
      options.create_attention = [&](const CudaDeviceProperties*) {
        return cuda::CreateCudnnAttention([&] { return library.Graphs(); }, {.rates = rates->On({9, 0})});
      };
    }
    const auto backend = CreateCudaBackend(std::make_shared<StandInRuntime>(kLarge), std::move(options));
    const auto trainer = Trainer::Create(job, {.backend = backend.get()});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    if (!trainer.ok()) return outcome;
    outcome.description = (*trainer)->devices().description;
    for (int i = 0; i < 2; ++i) {
      const absl::StatusOr<StepReport> step = (*trainer)->Step();
      EXPECT_TRUE(step.ok()) << step.status();
      if (!step.ok()) return outcome;
      EXPECT_EQ(step->peak_bytes_measured, step->peak_bytes_planned);
      outcome.peak_bytes = step->peak_bytes_measured;
      outcome.loss = step->loss;
    }
    for (const testing::AttentionCall& call : library.calls) outcome.by_library.insert(call.key.backward);
    return outcome;
  };
  const std::string forward = "9.0 forward D=64 S=12 causal: own 2 cudnn 1\n";
  const std::string backward = "9.0 backward D=64 S=16 causal: own 2 cudnn 1\n", no_setting = "name=attention";
  const Outcome by_cudnn = train("", no_setting), halves = train(backward, no_setting),
                faster = train(forward + backward, no_setting), own = train("", "runtime.cudnn_attention=false");
  EXPECT_EQ(by_cudnn.by_library, (std::set<bool>{false, true}));
  EXPECT_EQ(halves.by_library, std::set<bool>{false});
  EXPECT_EQ(faster.by_library, std::set<bool>());
  EXPECT_EQ(faster.loss, own.loss);
  EXPECT_EQ(faster.peak_bytes, own.peak_bytes);
  EXPECT_LT(faster.peak_bytes, by_cudnn.peak_bytes);
  const std::string shape = "bf16 3 x 12 positions, 4 heads of width 64 (2 of keys)";
  EXPECT_THAT(by_cudnn.description, Not(HasSubstr(shape)));
  EXPECT_THAT(halves.description, HasSubstr("measured to be slower: gradients of " + shape));
  EXPECT_THAT(faster.description, HasSubstr("measured to be slower: " + shape));
}

// A job that says who computes attention asks no rates.
TEST_F(CudaJobTest, RatesOfAttentionAreThoseOfTheKindOfGpu) {
  const auto rows = [&](const std::string& setting, const cuda::ComputeCapability& gpu) {
    const auto options = AttentionOptionsOn(MakeJob({"runtime.device=CUDA", setting}), gpu);
    EXPECT_TRUE(options.ok()) << options.status();
    return options.ok() ? options->rates.size() : -1;
  };
  EXPECT_GT(rows("name=attention", {9, 0}), 0);
  EXPECT_EQ(rows("name=attention", {7, 5}), 0);
  EXPECT_EQ(rows("name=attention", {}), 0);
  for (const char* said : {"true", "false"}) {
    EXPECT_EQ(rows(absl::StrCat("runtime.cudnn_attention=", said), {9, 0}), 0);
  }
}

// A trace was written when its run ended, after the last checkpoint, so that whoever ended the process before had none.
TEST_F(CudaJobTest, ATraceIsThereAfterItsLastStep) {
  const auto backend = OnStandIn(std::make_shared<StandInRuntime>(kLarge), kRanksPerDevice);
  const std::string path = absl::StrCat(::testing::TempDir(), "/cuda_job_trace.", getpid(), ".json");
  const auto trainer = Trainer::Create(
      MakeJob(kCuda), {.backend = backend.get(), .trace = {.path = path, .first_step = 2, .bytes_per_second = 1e9}});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  for (int step = 1; step <= 3; ++step) {
    EXPECT_FALSE(std::filesystem::exists(path));
    ASSERT_TRUE((*trainer)->Step().ok());
  }
  EXPECT_TRUE(std::filesystem::exists(path));
  std::ifstream file(path + ".txt");
  const std::string tables(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(tables, (*trainer)->trace().Table());
  EXPECT_THAT(tables, AllOf(HasSubstr("rank 0, mean of 2 steps"), HasSubstr("\nroofline: 1 GB/s\n"),
                            ContainsRegex("\nforward +9 +[0-9]+ +16  n[nt]  f32>f32 ")));
}

// Regression: a program without NVTX said nothing to who had started it under a profiler.
TEST_F(CudaJobTest, AProfilerThatGetsNoRangesIsTold) {
  ASSERT_EQ(setenv("NVTX_INJECTION64_PATH", "/nowhere/profiler.so", 1), 0);
  const auto backend = OnStandIn(std::make_shared<StandInRuntime>(kLarge), kRanksPerDevice);
  const auto trainer = Trainer::Create(MakeJob(kCuda), {.backend = backend.get()});
  ASSERT_EQ(unsetenv("NVTX_INJECTION64_PATH"), 0);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const auto told = HasSubstr("\nthe profiler gets no ranges: telemetry.nvtx wants a program that was built where");
  if (CreateNvtxRanges().ok()) {
    EXPECT_THAT((*trainer)->devices().description, Not(told));
  } else {
    EXPECT_THAT((*trainer)->devices().description, told);
  }
}

TEST_F(CudaJobTest, TheBudgetIsARanksShareOfTheGpu) {
  const auto runtime =
      std::make_shared<StandInRuntime>(StandInOptions{.devices = 2, .memory_bytes = (int64_t{2} << 30) + 6000});
  EXPECT_EQ(OnStandIn(runtime, 1)->DefaultBudget(2)->bytes, 6000);
  EXPECT_EQ(OnStandIn(runtime, 3)->DefaultBudget(6)->bytes, 2000);
  EXPECT_EQ(OnStandIn(runtime, 3)->DefaultBudget(1)->bytes, 6000);
  EXPECT_EQ(OnStandIn(runtime, 3)->DefaultBudget(7).status().code(), absl::StatusCode::kFailedPrecondition);
  // Host memory is divided by all ranks.
  const int64_t host_bytes = OnStandIn(runtime, 3)->DefaultBudget(1)->host_bytes;
  EXPECT_GT(host_bytes, 0);
  EXPECT_EQ(OnStandIn(runtime, 3)->DefaultBudget(6)->host_bytes, host_bytes / 6);
  const absl::Status status =
      Trainer::Create(MakeJob(kCuda), {.backend = OnStandIn(runtime, kRanksPerDevice).get()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("(the GPU's memory less 2 GiB for CUDA and its libraries, divided by 2 ranks;"));
}

TEST_F(CudaJobTest, TheBudgetLeavesMoreForNcclAndOnBlackwell) {
  constexpr int64_t kGi = int64_t{1} << 30;
  const auto budget = [](int compute_major, bool nccl, int ranks) {
    CudaBackendOptions options = Options(1);
    if (nccl) options.create_group = [](auto&&...) { return absl::InternalError("makes no group here"); };
    const auto runtime = std::make_shared<StandInRuntime>(
        StandInOptions{.devices = 2, .compute_major = compute_major, .memory_bytes = 10 * kGi});
    return *CreateCudaBackend(runtime, std::move(options))->DefaultBudget(ranks);
  };
  EXPECT_EQ(budget(9, true, 1).bytes, 8 * kGi);
  EXPECT_EQ(budget(9, false, 2).bytes, 8 * kGi);
  EXPECT_EQ(budget(9, true, 2).bytes, 7 * kGi);
  EXPECT_EQ(budget(10, true, 1).bytes, 7 * kGi);
  EXPECT_EQ(budget(12, true, 2).bytes, 6 * kGi);
  EXPECT_EQ(budget(12, true, 2).origin, "the GPU's memory less 4 GiB for CUDA and its libraries with NCCL");
}

// Calibrating keeps it in the profile of the machine, so that plans for that machine leave as much.
TEST_F(CudaJobTest, TellsTheComputeCapabilityOfTheFirstGpu) {
  const auto capability = [](StandInOptions options) {
    return OnStandIn(std::make_shared<StandInRuntime>(options), 1)->compute_capability();
  };
  EXPECT_EQ(capability({.devices = 2, .compute_major = 8, .compute_minor = 9}), std::pair(8, 9));
  EXPECT_EQ(capability({.devices = 0, .compute_major = 8, .compute_minor = 9}), std::pair(0, 0));
}

TEST_F(CudaJobTest, EachProcessOnASharedGpuHasItsLibrariesInItsShare) {
  constexpr int64_t kGi = int64_t{1} << 30;
  const auto backend = [](int gpus) {
    CudaBackendOptions options = Options(kRanksPerDevice);
    options.create_group = [](auto&&...) { return absl::InternalError("makes no group here"); };
    options.processes_share = true;
    options.share = {.ranks = 1, .ranks_before = 1, .ranks_on_host = 2};
    return CreateCudaBackend(
        std::make_shared<StandInRuntime>(StandInOptions{.devices = gpus, .memory_bytes = 10 * kGi}),
        std::move(options));
  };
  const auto budget = backend(1)->DefaultBudget(2);
  ASSERT_TRUE(budget.ok()) << budget.status();
  EXPECT_EQ(budget->bytes, 2 * kGi);
  EXPECT_EQ(budget->origin,
            "the GPU's memory, divided by 2 processes, less 3 GiB for CUDA and its libraries with NCCL");
  EXPECT_TRUE(backend(1)->CreateDevices(1, /*synchronous=*/false).ok());
  const absl::Status enough = backend(2)->CreateDevices(1, /*synchronous=*/false).status();
  EXPECT_EQ(enough.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(enough.message()), HasSubstr("this one has 2 for 2; leave it out, with ranks_per_device 1"));
}

TEST_F(CudaJobTest, AnArenaThatDoesNotFitIsRefusedBeforeTheFirstIsAllocated) {
  std::vector<std::string> overrides = kCuda;
  overrides.push_back("memory.budget_bytes=1000000000");
  const auto runtime = std::make_shared<StandInRuntime>(StandInOptions{.memory_bytes = 200'000});
  const absl::Status status =
      Trainer::Create(MakeJob(overrides), {.backend = OnStandIn(runtime, kRanksPerDevice).get()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("GPU 0 ("), HasSubstr("free of 195 KiB, and 2 ranks want an arena of "),
            HasSubstr(" each, and 256 MiB must stay free for windows, graphs and what libraries allocate late; end "
                      "what else uses it, or set memory.budget_bytes to at most 0 ")));
}

TEST_F(CudaJobTest, TooFewGpusAndTooOldOnesAreRefused) {
  const auto two = std::make_shared<StandInRuntime>(StandInOptions{.devices = 2});
  EXPECT_TRUE(OnStandIn(two, 1)->CreateDevices(2, false).ok());
  const absl::Status few = OnStandIn(two, 1)->CreateDevices(3, false).status();
  EXPECT_EQ(few.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(few.message()), HasSubstr("3 ranks with 1 on a GPU want 3 GPUs; found 2"));
  const auto old = std::make_shared<StandInRuntime>(StandInOptions{.compute_major = 7});
  const absl::Status status = OnStandIn(old, 1)->CreateDevices(1, false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("is too old: wanted compute capability 8.0 (Ampere) or newer, found 7."));
}

TEST_F(CudaJobTest, AProgramWithoutTheCudaBackendSaysSo) {
  const absl::Status status = CreateBackend(MakeJob(kCuda)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("runtime.device is CUDA, and this program runs on CPUs alone"));
  EXPECT_EQ(Trainer::Create(MakeJob({}), {}).status().message(), "TrainerOptions.backend is missing");
}

}  // namespace
}  // namespace shale
