// Helpers of the report tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/compile/step/options_enums.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/report/explain.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/planner_jobs.h"
#include "tests/engine/plan/planner/plans.h"

namespace shale {

// Returns small jobs of every strategy and accumulation, with different activation checkpointing, K and precision. Some
// of them offload, have one rank, or have room for a snapshot.
inline std::vector<Job> VariedJobs() {
  std::vector<Job> jobs;
  for (Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
    for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
      if (!CheckCombination(strategy, accumulation).ok()) continue;
      const auto n = static_cast<int64_t>(jobs.size());
      Job job = n % 4 == 3 ? SmallMlpJob() : SmallDecoderJob(n % 2 == 0);
      job.name = absl::StrCat(ToString(strategy), " ", ToString(accumulation));
      job.sharding.strategy = strategy;
      job.sharding.accumulation = accumulation;
      job.activation_checkpointing.preset = static_cast<CheckpointingPreset>(n % 6);
      if (n % 3 == 0) job.precision.compute = ComputePrecision::kBFloat16;
      if (n % 3 == 1) job.batch.global_batch = 7;
      if (n % 5 == 2) job.sharding.ranks = 1;
      if (n % 2 == 1) job.checkpoint.every_steps = 5;
      if (n % 4 == 2) {
        job.runtime.device = DeviceType::kCuda;
        job.memory.offload = {"*"};
      }
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

// Returns the text with single spaces, so that line breaks do not matter.
inline std::string Flat(const std::string& text) {
  std::string flat;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
    absl::StrAppend(&flat, flat.empty() ? "" : " ", word);
  }
  return flat;
}

// Returns what --explain prints for a job.
inline std::string Explain(const Job& job) {
  absl::StatusOr<std::string> text = ExplainText(job, Plan(job), MachineOf());
  EXPECT_TRUE(text.ok()) << text.status();
  return *std::move(text);
}

// Returns the table row that starts with `name`, after `title`.
inline std::string Row(const std::string& text, absl::string_view title, absl::string_view name) {
  bool found = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    found |= absl::StartsWith(line, title);
    if (found && absl::StartsWith(line, absl::StrCat("  ", name, " "))) return Flat(std::string(line));
  }
  return "";
}

// Returns a small decoder on five ranks, in fp32.
inline Job Named(Accumulation accumulation) {
  Job job = SmallDecoderJob(false);
  job.sharding.accumulation = accumulation;
  return job;
}

}  // namespace shale
