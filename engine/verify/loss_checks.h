// Checks what the loss of a job is made of.
#pragma once

#include <vector>

#include "engine/api/verify.h"
#include "engine/verify/division_checks.h"
#include "engine/verify/trial_run.h"

namespace shale {

// Compares the loss of an evaluation with that of the step on the same samples, and the loss of all targets with the
// losses that parts of them have if the others are taken out: by a weight of 0, or, for a job without target weights,
// by a mask. With weights it also compares the loss with that of doubled and of negated weights.
std::vector<VerifyRow> CheckLoss(VerifiedJob& verified, const TrialRecord& compared);

// Returns how many targets of the samples of a step count in the loss.
int64_t CountTargets(const RecordedSamples& samples, int64_t count);

}  // namespace shale
