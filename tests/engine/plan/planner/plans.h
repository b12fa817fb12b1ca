// Plans of small jobs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
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

// Returns the settings after "fits with", in the form that --set takes.
inline std::vector<std::string> SettingsIn(const std::string& message) {
  std::vector<std::string> settings;
  for (absl::string_view word : absl::StrSplit(message, absl::ByAnyChar(" ,;"), absl::SkipEmpty())) {
    if (absl::StrContains(word, '=')) settings.emplace_back(word);
  }
  return settings;
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
