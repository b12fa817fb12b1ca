// The checks of a verification: how a step is divided, recomputed, stopped and resumed, what the loss is made of, and
// the gradients.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/verify.h"
#include "engine/compile/graph/graph.h"
#include "engine/plan/config/job.h"
#include "engine/run/verify/small_job.h"
#include "engine/run/verify/trial_run.h"

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

// Compares the loss of an evaluation with that of the step on the same samples, and the loss of all targets with the
// losses that parts of them have if the others are taken out: by a weight of 0, or, for a job without target weights,
// by a mask. With weights it also compares the loss with that of doubled and of negated weights.
std::vector<VerifyRow> CheckLoss(VerifiedJob& verified, const TrialRecord& compared);

// Returns how many targets of the samples of a step count in the loss.
int64_t CountTargets(const RecordedSamples& samples, int64_t count);

// Runs one step in fp32, from the job's initial weights with some noise (at exact zeros and ones, gradients may vanish
// that do not elsewhere), and compares the gradient of each parameter with central differences of the loss along two
// directions: that of the gradient itself, and a random one, in which a part of the gradient that is missing shows. If
// a gradient is zero, both directions are random.
//
// The tolerance follows from the differences themselves: each direction is measured at two distances, h and h / 2. What
// they differ by is more than what is wrong with their extrapolation, and the rounding of the loss, divided by h, is
// known too. A gradient is wrong only if two pairs of distances say so.
//
// Takes parameters of the first unit and of the last before those in between, until `seconds` have passed; the remark
// says how many were checked.
VerifyRow CheckGradients(VerifiedJob& verified, double seconds);

// Backward runs from the last unit to the first. Returns where gradients go wrong there: the first op that writes a
// wrong gradient of a parameter, and the ops that computed what it reads, back to gradients from which a right gradient
// of a parameter was computed. `right` and `wrong` are names of parameters; others are not known. REQUIRES: `wrong` is
// not empty, and the graph is one of mode kTraining.
std::string WhereGradientsGoWrong(const ModelGraph& graph, const std::set<std::string>& right,
                                  const std::set<std::string>& wrong);

// Returns the op that computes the loss, with its unit: "CrossEntropy in unit head".
std::string LossOpOf(const ModelGraph& graph);

}  // namespace shale
