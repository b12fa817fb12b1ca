// The reports of a run's steps and evaluations, computed from the outputs of its programs.
//
// UserMetrics collects the values that a program adds to the report of a step.
//
// PeakFlops finds the peak FLOP/s of a device. MFU is a fraction of it if the job does not set telemetry.peak_flops.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/events.h"
#include "engine/api/model.h"
#include "engine/run/runtime/backend.h"
#include "engine/run/runtime/step_items.h"
#include "kernels/dtype.h"

namespace shale {

// Returns whether the loss and the gradient of a step were finite on all ranks.
bool IsFinite(const StepOutputs& outputs);

// What is known about a step besides its outputs.
struct RunStepFacts {
  int64_t step = 0;    // As in StepReport.
  int64_t tokens = 0;  // As in StepReport.
  int64_t processed_tokens = 0;
  double learning_rate = 0;
  double seconds = 0;
  double predicted_seconds = 0;  // As in StepReport.
  int64_t peak_bytes_planned = 0;
  int64_t peak_bytes_measured = 0;
  TargetWeights target_weights = TargetWeights::kNone;
};
// Makes the report of a step without `mfu`, which takes what other processes have read (StepMonitor::AfterStep).
StepReport MakeStepReport(const StepOutputs& outputs, const RunStepFacts& facts);

// Adds up the runs of an evaluation.
class EvaluationSum {
 public:
  explicit EvaluationSum(TargetWeights target_weights = TargetWeights::kNone) : target_weights_(target_weights) {}
  void Add(const StepOutputs& outputs);
  // Returns the report on all runs that were added. `step` is the number of steps done.
  EvaluationReport Report(int64_t step) const;

 private:
  TargetWeights target_weights_;
  double loss_ = 0;  // Summed over tokens.
  double weight_ = 0;
  int64_t tokens_ = 0;
};

// Used by one thread at a time.
class UserMetrics {
 public:
  static constexpr size_t kMost = 64;          // Names in one report.
  static constexpr size_t kLongestName = 100;  // Bytes.

  // See Trainer::AddMetric.
  absl::Status Add(absl::string_view name, double value);
  // Returns the values since the last call, by name.
  std::vector<UserMetric> Take();

 private:
  std::map<std::string, double, std::less<>> values_;
};

// Returns the peak FLOP/s of one rank in matmuls of `dtype` (f32, bf16 or f16), when the job has `ranks` ranks. Ranks
// that share a device divide its FLOP/s equally. Takes Backend::NominalPeakFlops if it is known. Otherwise multiplies
// square matrices of growing size until a matmul takes milliseconds, and returns the FLOP/s of the fastest one.
// Measuring takes about a third of a second for each size.
absl::StatusOr<double> PeakFlops(const Backend& backend, DType dtype, int64_t ranks);
// Returns the same of matmuls of fp8 matrices, or 0 if it is not known: it is not measured, because a device without a
// nominal peak, such as a CPU, need not be faster in fp8.
double Float8PeakFlops(const Backend& backend, int64_t ranks);

}  // namespace shale
