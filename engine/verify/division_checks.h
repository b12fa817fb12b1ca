// Checks that the way in which a step is divided, recomputed, stopped and resumed does not change what it computes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/verify.h"
#include "engine/config/job.h"
#include "engine/verify/small_job.h"
#include "engine/verify/trial_run.h"

namespace shale {

// What the checks work on. Borrowed by them.
struct VerifiedJob {
  Job job;  // As it was given, with its model.
  SmallSize size;
  TrialContext context;
  std::string temporary_folder;  // Exists, is empty, and belongs to the verification.
  int64_t targets = 0;           // How many targets of the samples count in the loss.
};

// Return a row whose check could not be started, or ended with an error.
VerifyRow NotRun(VerifyRow row, const absl::Status& status);
VerifyRow Failed(VerifyRow row, const absl::Status& status);

// Runs the job that all others are compared with (ComparedJob) for kComparedSteps steps.
inline constexpr int kComparedSteps = 2;
absl::StatusOr<TrialRecord> RunCompared(VerifiedJob& verified);

// Compare the gradients of one step: of K micro-batches on one rank with those of one large micro-batch, and of the
// job's ranks with those of one rank (if the job has one, of two with those of one).
std::vector<VerifyRow> CheckDivision(VerifiedJob& verified, const TrialRecord& compared);

// Compare the bits of two steps with each preset of activation checkpointing, and with what the job itself says.
std::vector<Job> CheckpointingVariants(const VerifiedJob& verified);
VerifyRow CheckCheckpointing(VerifiedJob& verified, const Job& variant, const TrialRecord& compared);

// Compares the bits of steps after a save with those of a run that resumes from it, with the settings of the job.
VerifyRow CheckResume(VerifiedJob& verified);

// Compares the measured peak of each trial so far with its planned one.
VerifyRow CheckPeaks(const std::vector<PeakOfTrial>& peaks);

}  // namespace shale
