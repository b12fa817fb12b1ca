// Tests that a job is planned for a machine that is described as it is for the machine itself, and the rates of
// attention by which both plans choose.
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/api/backend.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/time/profile.h"
#include "engine/run/backends/cuda_planning.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/hardware_threads.h"
#include "kernels/ops/matmul.h"
#include "tests/engine/plan/planner/planner_jobs.h"

namespace shale {
namespace {

int64_t ArenaBytes(const Job& job, const Machine& machine) {
  const absl::StatusOr<JobPlan> plan = PlanJob(job, machine);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? plan->arena_bytes : 0;
}

TEST(PlanningMachine, PlansAsTheBackendDoes) {
  Job job = SmallDecoderJob(false);
  job.sharding.ranks = 1;
  const absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(job);
  ASSERT_TRUE(backend.ok()) << backend.status();
  const absl::StatusOr<Machine> here = PlanningMachine(job, HardwareThreads()), wide = PlanningMachine(job, 1024);
  ASSERT_TRUE(here.ok() && wide.ok()) << here.status() << wide.status();
  EXPECT_EQ(ArenaBytes(job, *here), ArenaBytes(job, (*backend)->machine()));
  EXPECT_EQ(here->cpu_matmuls, (*backend)->cpu_matmuls());
  EXPECT_EQ(wide->hardware_threads, 1024);
  // Each thread has scratch of its own.
  EXPECT_GT(ArenaBytes(job, *wide), ArenaBytes(job, *here));
  EXPECT_EQ(here->default_budget, nullptr) << "this machine's memory does not count";
}

TEST(PlanningMachine, PlansForGpusWithoutCuda) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = DeviceType::kCuda;
  const absl::StatusOr<Machine> machine = PlanningMachine(job, 8);
  ASSERT_TRUE(machine.ok()) << machine.status();
  const std::unique_ptr<Ops> ops = machine->create_ops(1);
  const Op matmul(MatMul{.a = Tensor::Contiguous(DType::kFloat32, {8, 16}),
                         .b = Tensor::Contiguous(DType::kFloat32, {16, 4}),
                         .c_MN = Tensor::Contiguous(DType::kFloat32, {8, 4})});
  EXPECT_EQ(ops->ScratchBytes(matmul), int64_t{32} << 20);
  EXPECT_TRUE(absl::IsFailedPrecondition(ops->Prepare(matmul, int64_t{32} << 20)));
  ASSERT_NE(ops->host(), nullptr) << "updates on the host";
  EXPECT_GT(ArenaBytes(job, *machine), 0);

  job.sharding.ranks = 65;
  job.runtime.ranks_per_device = 65;
  EXPECT_THAT(std::string(PlanningMachine(job, 8).status().message()), ::testing::HasSubstr("at most 64 ranks"));
}

// Regression: plans for an A100 took jobs that its GPUs refuse.
TEST(PlanningMachine, RefusesWhatTheGpusOfAProfileLack) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = DeviceType::kCuda;
  const auto matmul = [](const absl::StatusOr<Machine>& machine) {
    const Tensor scale = Tensor::Contiguous(DType::kFloat32, {1});
    const Op op(MatMul{.a = Tensor::Contiguous(DType::kFloat8E4M3, {16, 32}),
                       .b = Tensor::Contiguous(DType::kFloat8E4M3, {16, 32}),
                       .c_MN = Tensor::Contiguous(DType::kBFloat16, {16, 16}),
                       .scale_a = scale,
                       .scale_b = scale,
                       .transpose_b = true});
    return machine->create_ops(1)->CheckAvailable(op);
  };
  const auto of = [&](const proto::MachineProfile& profile) { return PlanningMachineOfProfile(job, 8, profile); };
  for (const std::string& name : ProfileNames()) {
    absl::StatusOr<proto::MachineProfile> profile = ReadProfile(name);
    ASSERT_TRUE(profile.ok() && profile->has_compute_minor()) << name;
    EXPECT_EQ(matmul(of(*profile)).ok(), profile->peak_flops_fp8() > 0) << name;
    // Some GPUs of major capability 8 multiply fp8 matrices, so the major number alone does not tell.
    profile->clear_compute_minor();
    EXPECT_TRUE(matmul(of(*profile)).ok()) << name;
  }
  const absl::StatusOr<proto::MachineProfile> a100 = ReadProfile("a100x8");
  EXPECT_THAT(std::string(matmul(of(*a100)).message()),
              ::testing::HasSubstr("this GPU has compute capability 8.0; GPUs multiply fp8 matrices from 8.9 on"));
  EXPECT_TRUE(matmul(PlanningMachine(job, 8)).ok());
}

// A profile's GPUs refuse a job before anything runs.
TEST(PlanningMachine, RefusesBlockwiseScalesOnGpusOtherThanHopper) {
  Job job = SmallFloat8Job();
  job.runtime.device = DeviceType::kCuda;
  job.precision.fp8_scaling = Float8Scaling::kBlockwise;
  for (const auto& [name, has] : {std::pair("h100x8", true), {"h200x8", true}, {"b200x8", false}}) {
    const absl::StatusOr<proto::MachineProfile> profile = ReadProfile(name);
    ASSERT_TRUE(profile.ok()) << profile.status();
    const absl::StatusOr<Machine> machine = PlanningMachineOfProfile(job, 8, *profile);
    ASSERT_TRUE(machine.ok()) << machine.status();
    const absl::Status status = PlanJob(job, *machine).status();
    EXPECT_EQ(status.ok(), has) << name << ": " << status;
    if (has) continue;
    const std::string message(status.message());
    EXPECT_THAT(message, ::testing::HasSubstr("this GPU has compute capability 10.0"));
    EXPECT_THAT(message, ::testing::HasSubstr("choose precision.fp8_scaling TENSORWISE"));
  }
}

// Our own kernels were not measured, so cuDNN computes what it can, and bits stay as they are. Whoever commits rates of
// our kernels changes the expectation in the loops, and says which jobs get other bits.
TEST(PlanningMachine, TheCompiledRatesOfAttentionCanBeRead) {
  const auto rates = CompiledAttentionRates();
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_GT(rates->On({9, 0}).size(), 0);
  for (const bool backward : {false, true}) {
    for (const int64_t width : {64, 96, 128}) {
      for (const int64_t length : {1024, 2048, 4096, 8192}) {
        EXPECT_FALSE(rates->On({9, 0}).OwnIsFaster({.backward = backward, .length = length, .width = width}));
      }
    }
  }
  const CompiledFile poem[] = {{"attention.txt", "no table\n"}};
  EXPECT_THAT(std::string(CompiledAttentionRates(poem).status().message()),
              ::testing::StartsWith("tools/tuning/attention.txt: line 1: wanted \"shale attention rates 1\""));
}

}  // namespace
}  // namespace shale
