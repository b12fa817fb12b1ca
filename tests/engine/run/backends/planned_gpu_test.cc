// Tests that every build plans the jobs of tools/jobs for GPUs, and as the CUDA backend does where it is built.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/compile/program/program.h"
#include "engine/plan/planner/job_plan.h"
#include "gtest/gtest.h"
#include "kernels/hardware_threads.h"

namespace shale {
namespace {

struct Planned {
  int64_t arena_bytes = 0, host_bytes = 0;
  std::vector<int64_t> scratch;  // Of the instructions of the step.
  bool operator==(const Planned&) const = default;
};

absl::StatusOr<Planned> PlanOn(const Job& job, const Machine& machine) {
  const absl::StatusOr<DataFacts> data = DataFactsForPlanning(job);
  if (!data.ok()) return data.status();
  const absl::StatusOr<ResolvedJob> resolved = ResolveJob(job, *data, machine);
  if (!resolved.ok()) return resolved.status();
  const JobPlan* plan = &resolved->plan;
  Planned planned{.arena_bytes = plan->arena_bytes, .host_bytes = plan->host_memory.total_bytes()};
  const std::unique_ptr<Ops> ops = machine.create_ops(job.sharding.ranks);
  for (const Instruction& instruction : plan->train.step.program.instructions) {
    if (const Op* op = std::get_if<Op>(&instruction.action)) planned.scratch.push_back(ops->ScratchBytes(*op));
  }
  return planned;
}

TEST(PlannedGpu, EveryBuildPlansEveryJobForBothDevicesAndAsTheBackendDoes) {
  int jobs = 0;
  for (const auto& file : std::filesystem::directory_iterator("tools/jobs")) {
    if (file.path().extension() != ".textproto") continue;
    for (const char* device : {"runtime.device=CPU", "runtime.device=CUDA"}) {
      SCOPED_TRACE(file.path().string() + " " + device);
      const absl::StatusOr<Job> job = LoadJob(file.path().string(), {device, "memory.budget_bytes=9000000000000000"});
      ASSERT_TRUE(job.ok()) << job.status();
      const absl::StatusOr<Machine> machine = PlanningMachine(*job, HardwareThreads());
      ASSERT_TRUE(machine.ok()) << machine.status();
      const absl::StatusOr<Planned> planned = PlanOn(*job, *machine);
      ASSERT_TRUE(planned.ok()) << planned.status();
      ++jobs;
      const absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(*job);
      if (absl::IsFailedPrecondition(backend.status())) continue;  // Built without this device.
      ASSERT_TRUE(backend.ok()) << backend.status();
      const absl::StatusOr<Planned> wanted = PlanOn(*job, (*backend)->machine().WithoutBudget());
      ASSERT_TRUE(wanted.ok()) << wanted.status();
      EXPECT_EQ(*planned, *wanted);
    }
  }
  EXPECT_GE(jobs, 30);
}

}  // namespace
}  // namespace shale
