// What a run notices of itself: that its steps train nothing, that MFU means nothing, that ranks are slower than the
// others, which evaluation was the best, and whether the run should go on.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/api/events.h"
#include "engine/files/checkpoint/manifest.h"
#include "engine/run/train/step_contract.h"
#include "sharding/comm/control_plane.h"

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

// All ranks of a job take the same time for a step, because they wait for the slowest. So a rank's own time is that of
// the step less what the rank waited, beyond what the one that waited least did. Used by one thread.
class StragglerMonitor {
 public:
  static constexpr double kSlower = 0.2;  // Than the median, as a part of it.
  static constexpr int64_t kSteps = 20;   // In a row.

  // Takes how long each rank waited in a step, in the order of ranks; always of as many ranks. Returns a line about
  // the ranks that have just been slower than the median for kSteps steps, and otherwise "". A rank is named again
  // once it has not been slow for a step.
  std::string Add(double step_seconds, absl::Span<const double> waited_seconds);

 private:
  std::vector<int64_t> slow_steps_;  // By rank, in a row.
};

// Used by one thread, except where a function says otherwise.
class StepMonitor {
 public:
  // `ranks` are those of the job, and `peak_flops` the peak of one, 0 if it is not known. See StepWarnings for
  // `vocabulary`.
  StepMonitor(int64_t ranks, int64_t vocabulary, double peak_flops, ControlPlane& control)
      : ranks_(ranks), peak_flops_(peak_flops), control_(control), doubts_(vocabulary, peak_flops > 0) {}

  // Any thread and any signal handler may call it.
  void RequestStop() { stop_.store(true, std::memory_order_relaxed); }
  // Returns whether no further step begins. With several processes, a request takes effect once all know of it.
  bool stopped() const { return control_.processes() == 1 ? stop_.load(std::memory_order_relaxed) : stop_agreed_; }

  // What this process knows of a step beside its report.
  struct LocalStep {
    // For each rank of this process how long it waited in the step (BlockedNs), with its number.
    std::vector<std::pair<int64_t, int64_t>> waited_ns;
    double flops = 0;           // Of all ranks, without document_flops (StepFlops::OfTokens).
    double document_flops = 0;  // Of the ranks of this process (StepFlops::OfDocuments).
    bool wants_trace = false;   // As in StepNote.
    RankTimes longest;          // As in StepNote.
  };
  // Exchanges with the other processes what the step with this report was like. Sets the largest peak and MFU in it.
  absl::Status AfterStep(LocalStep step, StepReport& report);

  // Returns whether some process wants the next step to be traced. All processes return the same.
  bool wants_trace() const { return wants_trace_; }
  // Returns the times of the rank of the job that worked longest in the last step, if that was traced for a process.
  const RankTimes& longest_of_job() const { return longest_of_job_; }

  // See TrainerDevices::slow_ranks, Trainer::warnings and StepWarnings::AtEnd.
  const std::string& slow_ranks() const { return slow_ranks_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Adds a warning about the last step, after AfterStep.
  void Warn(std::string warning) { warnings_.push_back(std::move(warning)); }
  absl::Status AtEnd(int64_t tokens) const { return doubts_.AtEnd(tokens); }

 private:
  const int64_t ranks_;
  const double peak_flops_;
  ControlPlane& control_;
  std::atomic<bool> stop_ = false;  // This process was asked to stop.
  bool stop_agreed_ = false;        // Some process was, and all know it. Used only with several processes.
  bool wants_trace_ = false;
  RankTimes longest_of_job_;
  StragglerMonitor stragglers_;
  std::string slow_ranks_;
  StepWarnings doubts_;
  std::vector<std::string> warnings_;
};

// Used by one thread. With several processes, each has one, and all hear of the same losses.
class EvaluationHistory {
 public:
  // `data` tells apart evaluations whose losses cannot be compared. `patience` is checkpoint.patience.
  EvaluationHistory(std::string data, int64_t patience) : data_(std::move(data)), patience_(patience) {}

  // Goes on with the history of a checkpoint, unless that is of other data.
  void GoOnAfter(const SavedEvaluations& saved);
  // Adds the evaluation after `step` steps. Returns whether its loss is the lowest so far. A loss that is not finite
  // never is.
  bool Add(int64_t step, double loss);

  // Returns whether there was an evaluation after `step` steps.
  bool Has(int64_t step) const { return saved_.last_step == step; }
  // Returns whether as many evaluations in a row as the patience allows had no lower loss.
  bool out_of_patience() const { return patience_ > 0 && saved_.since_best >= patience_; }
  // Returns why the run ends: "the evaluation loss was not below 2.3112, that of step 400, in 3 evaluations".
  std::string WhyItEnds() const;
  // Returns what a checkpoint records.
  const SavedEvaluations& saved() const { return saved_; }

 private:
  const std::string data_;
  const int64_t patience_;
  SavedEvaluations saved_;
};

}  // namespace shale
