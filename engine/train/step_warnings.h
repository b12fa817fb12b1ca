// StepWarnings: notices a run that trains nothing, and an MFU that means nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/api/events.h"

namespace shale {

// Looks at the reports of a run's steps. Used by one thread.
class StepWarnings {
 public:
  // `vocabulary` is that of the model, 0 if it predicts no tokens. `has_peak`: MFU is reported.
  StepWarnings(int64_t vocabulary, bool has_peak) : vocabulary_(vocabulary), has_peak_(has_peak) {}

  // Returns what the last step makes doubtful, a line for each doubt. Each doubt comes once:
  //   - in kSteps steps in a row no target counted;
  //   - in kSteps steps in a row the gradient was exactly 0, although targets counted;
  //   - more FLOP/s than the peak, so that MFU is not known.
  std::vector<std::string> Add(const StepReport& report);

  // Call after the last step of a run, which has counted `tokens` targets so far. Returns FailedPrecondition if it
  // trained nothing: if no target counted, or if the gradient was exactly 0 up to the end. A run of fewer than kSteps
  // steps is judged by those that it had.
  absl::Status AtEnd(int64_t tokens) const;

  static constexpr int64_t kSteps = 10;

 private:
  std::string NoGradient() const;

  const int64_t vocabulary_;
  const bool has_peak_;
  int64_t steps_ = 0;
  int64_t without_targets_ = 0;   // The last steps in a row in which none counted.
  int64_t without_gradient_ = 0;  // The last steps in a row with a gradient of exactly 0.
  int64_t last_step_ = 0;
  double loss_ = 0;  // Of the last step.
  bool told_mfu_ = false;
};

}  // namespace shale
