// Plans of small jobs.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/plan/planner/job_plan.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/planner_jobs.h"

namespace shale {

// Returns the plan of a job that has one.
inline JobPlan Plan(const Job& job) {
  absl::StatusOr<JobPlan> plan = PlanJob(job, MachineOf());
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// Returns the error of a job that does not fit.
inline std::string RefusalMessage(const Job& job) {
  const absl::StatusOr<JobPlan> plan = PlanJob(job, MachineOf());
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted) << plan.status();
  return std::string(plan.status().message());
}

// Returns a job that offloads the activations of its blocks.
inline Job OffloadingJob(Accumulation accumulation) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = DeviceType::kCuda;
  job.memory.offload = {"blocks.*"};
  job.sharding.accumulation = accumulation;
  return job;
}

}  // namespace shale
