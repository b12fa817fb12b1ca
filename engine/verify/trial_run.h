// A trial: a short run of a small job on recorded samples.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/trainer.h"
#include "engine/config/job.h"
#include "engine/runtime/backend.h"
#include "engine/verify/distance.h"
#include "engine/verify/samples.h"

namespace shale {

// The peak of one rank's arena in the steps of a trial.
struct PeakOfTrial {
  std::string trial;
  int64_t planned_bytes = 0, measured_bytes = 0;
};

// What all trials of a verification share. Borrowed by them.
struct TrialContext {
  const Backend* backend = nullptr;
  const std::atomic<bool>* cancelled = nullptr;  // VerifyOptions::cancelled.
  RecordedSamples samples;
  std::vector<PeakOfTrial> peaks;  // Of the trials that ran.

  // Returns Cancelled if the verification must end.
  absl::Status CheckCancelled() const;
};

// What a trial did.
struct TrialRecord {
  std::vector<double> losses;  // Of each step.
  ParameterValues gradients;   // Of the first step, reduced and not clipped.
  ParameterValues weights;     // After the last step.
  double last_seconds = 0;     // How long the last step took.
};

// Once the verification was cancelled, Start, Run and Evaluate return Cancelled. A step that has begun completes.
class TrialRun {
 public:
  struct Options {
    std::string checkpoint_folder;  // Empty: the trial saves nothing.
    ResumeOptions resume;
  };
  // Creates the trainer of a small job. `name` tells the trial from others, in messages.
  static absl::StatusOr<std::unique_ptr<TrialRun>> Start(TrialContext& context, const std::string& name, const Job& job,
                                                         const Options& options);
  static absl::StatusOr<std::unique_ptr<TrialRun>> Start(TrialContext& context, const std::string& name,
                                                         const Job& job) {
    return Start(context, name, job, {});
  }

  Trainer& trainer() { return *trainer_; }
  const Trainer& trainer() const { return *trainer_; }
  // Returns the samples that Evaluate reads: the same as those of the steps, unless they are edited.
  RecordedSource& evaluated() { return evaluated_; }

  enum class Keep { kLosses, kWeights, kGradientsAndWeights };
  // Runs steps, notes the peak, and returns what they did.
  absl::StatusOr<TrialRecord> Run(int steps, Keep keep);
  // Returns the loss of the samples of a step.
  absl::StatusOr<double> Evaluate();

 private:
  TrialRun(TrialContext& context, std::string name)
      : context_(context), name_(std::move(name)), trained_(context.samples), evaluated_(context.samples) {}

  TrialContext& context_;
  const std::string name_;
  RecordedSource trained_, evaluated_;
  std::unique_ptr<Trainer> trainer_;
};

// Returns the values of a parameter, or of its gradient.
absl::StatusOr<std::vector<float>> ReadWeights(const Trainer& trainer, const Parameter& parameter);
absl::StatusOr<std::vector<float>> ReadGradients(const Trainer& trainer, const Parameter& parameter);

}  // namespace shale
