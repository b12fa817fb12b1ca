// A trial: a short run of a small job on recorded samples.
//
// LargestDistance says how far apart two runs of one step are, ReorderedTolerance how far apart sums in another order
// may put them.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/trainer.h"
#include "engine/plan/config/job.h"
#include "engine/run/runtime/backend.h"
#include "engine/run/verify/samples.h"
#include "proto/machine.pb.h"

namespace shale {

// Values of each parameter, by name: weights or gradients, in row-major order.
using ParameterValues = std::map<std::string, std::vector<float>>;

// Returns the largest relative distance ||a - b|| / max(||b||, floor) over the parameters of two maps with the same
// keys. The floor is a thousandth of the norm of all of `b`: a gradient that is zero except for rounding (a key bias)
// is measured against it. Returns infinity if a difference is not finite. Sets *worst, unless it is null, to the name
// of the parameter that has the distance.
double LargestDistance(const ParameterValues& a, const ParameterValues& b, std::string* worst);

// Returns the relative distance that losses and gradients of the same `targets` targets may have if their sums ran in
// another order.
//
// In fp32, two orders of summing T contributions of random signs differ by about sqrt(T) 2^-24 of the norm of the sum.
// A factor of 40 has room for contributions of different sizes and for the blocks of matmuls. A lost or doubled target
// changes a gradient by 1 / T at least, which is more up to T = 5,000. If anything is `rounded` to bf16 (or TF32),
// blocks of matmuls may make an activation round the other way: 2^-9 of one activation, seen through a gradient. That
// has no bound that sizes give; a hundredth of the norm is what the laws of training steps allow too.
double ReorderedTolerance(int64_t targets, bool rounded);

// The peak of one rank's arena in the steps of a trial.
struct PeakOfTrial {
  std::string trial;
  int64_t planned_bytes = 0, measured_bytes = 0;
};

// What all trials of a verification share. Borrowed by them.
struct TrialContext {
  const Backend* backend = nullptr;
  const std::atomic<bool>* cancelled = nullptr;    // VerifyOptions::cancelled.
  const proto::MachineProfile* machine = nullptr;  // VerifyOptions::machine.
  RecordedSamples samples;
  std::vector<PeakOfTrial> peaks;  // Of the trials that ran.

  // Returns Cancelled if the verification must end.
  absl::Status CheckCancelled() const;
};

// What a trial did.
struct TrialRecord {
  std::vector<double> losses;    // Of each step.
  ParameterValues gradients;     // Of the first step, reduced and not clipped.
  ParameterValues weights;       // After the last step.
  double last_seconds = 0;       // How long the last step took.
  double predicted_seconds = 0;  // How long it should take. 0: not known.
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
