// Tests that hostile jobs cost no more memory than engine/api/plan.h says, whatever they ask for.
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "engine/api/plan.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/counted_memory.h"
#include "tests/engine/plan/planner/planner_jobs.h"
#include "tools/bench/hostile_jobs.h"

namespace shale {
namespace {

// Few enough that most searches for ways out come to their ends.
constexpr int64_t kInstructions = 4096;

AdmissionMachine AnyMachine() {
  return {.planning = [](const Job&, int64_t) { return MachineOf(); }};
}

TEST(AdmissionLimits, HostileJobsTakeNoMoreMemoryThanTheLimit) {
  const AdmissionOptions options{.time_limit = absl::Milliseconds(300),
                                 .memory_bytes = kPlanningBytes + kInstructions * kPlanningBytesPerInstruction};
  int planned = 0;
  for (const HostileJob& job : HostileJobs(kInstructions)) {
    CountMemory();
    const absl::StatusOr<Admission> admission = Admit(job.text, AnyMachine(), options);
    const int64_t bytes = MostCountedBytes();
    EXPECT_LE(bytes, options.memory_bytes) << job.name;
    EXPECT_TRUE(admission.ok() || absl::IsDeadlineExceeded(admission.status()) ||
                absl::IsResourceExhausted(admission.status()))
        << job.name << ": " << admission.status();
    planned += absl::IsDeadlineExceeded(admission.status()) ||
               (admission.ok() && admission->verdict == Admission::Verdict::kDoesNotFit);
  }
  EXPECT_GE(planned, 10) << "the jobs were to be planned, not refused at once";
}

TEST(AdmissionLimits, WhatNeedsMoreMemoryIsRefusedBeforeItTakesIt) {
  const AdmissionOptions options{.memory_bytes = int64_t{32} << 20};
  for (const HostileJob& job : HostileJobs(kInstructions)) {
    CountMemory();
    const absl::StatusOr<Admission> admission = Admit(job.text, AnyMachine(), options);
    EXPECT_LE(MostCountedBytes(), kPlanningBytes) << job.name;
    if (admission.ok()) {
      EXPECT_EQ(admission->verdict, Admission::Verdict::kInvalid) << job.name << ": " << admission->text;
    } else {
      EXPECT_TRUE(absl::IsResourceExhausted(admission.status())) << job.name << ": " << admission.status();
      EXPECT_TRUE(absl::StrContains(admission.status().message(), "more than the limit of 32.0 MiB"))
          << admission.status();
    }
  }
}

TEST(AdmissionLimits, LongJobsAreNotRead) {
  const std::string comment(17'000, '#');
  const absl::Status status = Admit(comment, AnyMachine()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(absl::StartsWith(status.message(), "the job has 17000 bytes, and at most 16384 are read")) << status;
}

}  // namespace
}  // namespace shale
