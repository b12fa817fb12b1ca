// Helpers of the report tests.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/planner/job_plan.h"
#include "gtest/gtest.h"
#include "tests/engine/planner/planner_jobs.h"

namespace shale {

// Returns the plan of a job that has one.
inline JobPlan Plan(const Job& job) {
  absl::StatusOr<JobPlan> plan = PlanJob(job, MachineOf());
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// Returns the text with single spaces, so that line breaks do not matter.
inline std::string Flat(const std::string& text) {
  std::string flat;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    absl::StrAppend(&flat, flat.empty() ? "" : " ", word);
  }
  return flat;
}

}  // namespace shale
