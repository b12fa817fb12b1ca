// Jobs for tests of Verify.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/api/verify.h"

namespace shale::testing {

inline constexpr char kDecoder[] = "model { decoder { width: 16 layers: 2 heads: 2 hidden: 24 init_std: 0.2 } }";

// Returns a job without data.path. `model` may be empty.
inline Job MakeJob(absl::string_view model, const std::vector<std::string>& overrides) {
  absl::StatusOr<Job> job =
      ParseJobText(absl::StrCat(R"(
batch { global_batch: 8 micro_batch: 2 sequence_length: 10 }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 60 }
runtime { threads_per_rank: 1 }
telemetry { run_folder: "never written" }
)",
                                model),
                   "job.textproto", overrides, model.empty() ? ModelFrom::kProgram : ModelFrom::kJob);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

// Verifies a job. The report is empty after an error.
inline VerifyReport MustVerify(const Job& job, VerifyOptions options) {
  options.temporary_folder = ::testing::TempDir();
  const absl::StatusOr<VerifyReport> report = Verify(job, options);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *report : VerifyReport();
}

// Returns the rows that do not hold, with their remarks.
inline std::vector<std::string> Failures(const VerifyReport& report) {
  std::vector<std::string> failures;
  for (const VerifyRow& row : report.rows) {
    if (row.outcome == VerifyOutcome::kFails) failures.push_back(absl::StrCat(row.check, ": ", row.remark));
  }
  return failures;
}

}  // namespace shale::testing
