// Runs a job to its end: trains, evaluates, saves and reports.
//
// Console makes the lines that a run prints while it trains:
//
//   step  12/400  loss 2.7312  norm 0.81  lr 1.20e-03  34,120 tok/s  mfu 41.2%  memory 212 MiB  eta 1m 32s
//   evaluation at step 100  loss 2.5010  perplexity 12.19  over 16,384 tokens
//   saved runs/a/checkpoints/step-0000000100  21.4 MiB in 0.08s
//
// RunSinks: the places outside the process to which a run's events go (telemetry.sinks).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/api/events.h"
#include "engine/api/trainer.h"
#include "engine/plan/config/job.h"
#include "engine/run/train/run_folder.h"

namespace shale {

// Prints one line, which it is given without a newline.
using PrintLine = std::function<void(absl::string_view)>;

// Calls Trainer::Run, appends every step and evaluation to the folder's metrics, and prints lines about steps,
// evaluations and checkpoints with `print`. If checkpoint.on_failure is kContinue, metrics that cannot be written do
// not end the run. REQUIRES: RunFolder::Begin succeeded.
absl::Status TrainToEnd(Trainer& trainer, RunFolder& folder, const PrintLine& print);

// Turns reports into lines. Keeps sums for the time left and for the speed between two lines. Not thread-safe.
class Console {
 public:
  Console(int64_t total_steps, int64_t print_every) : total_steps_(total_steps), print_every_(print_every) {}

  // Returns the line of a step, or nothing if no line is due. A line is due for every print_every-th step, for the
  // first step that this console sees, for the last step, and for a step that did not update the weights. Speed and MFU
  // are averages since the last line. Speed is that of all tokens; where not all of them are targets that count, that
  // of those stands beside it. Memory is the largest measured peak of any rank.
  std::optional<std::string> Step(const StepReport& report);
  static std::string Evaluation(int64_t step, const EvaluationReport& report);
  static std::string Checkpoint(const CheckpointReport& report);

 private:
  double SecondsLeft(int64_t step) const;

  const int64_t total_steps_;
  const int64_t print_every_;
  // Sums since the last line.
  int64_t tokens_ = 0, counted_ = 0;
  double seconds_ = 0;
  double mfu_seconds_ = 0;  // Sum of mfu x seconds.
  bool knows_mfu_ = true;   // Of every step.
  // Smoothed seconds per step. Excludes the first step, which pays for page faults, as soon as there is a second one.
  double step_seconds_ = 0;
  int64_t steps_seen_ = 0;
};

// Passes every event on to each place through a queue of its own, so that none of them makes the run wait. Events that
// come before Open wait for it.
class RunSinks : public EventSink {
 public:
  explicit RunSinks(const SinksConfig& config);

  // Opens what the job names, relative paths in `run_folder`, and begins to write. Returns the first error; what could
  // not be opened then gets no events.
  absl::Status Open(absl::string_view run_folder);

  void Take(const RunEvent& event) override;

  // Waits until the events are written (EventQueue::Close). Returns a line for each place that missed some, with the
  // reason. No event may come after that.
  std::vector<std::string> Close();

 private:
  struct Sink {
    std::string field;  // In the job.
    std::string path;   // As the job gives it.
    absl::StatusOr<std::unique_ptr<EventWriter>> (*open)(const std::string& path);
    std::unique_ptr<EventQueue> queue;
  };

  std::vector<Sink> sinks_;
};

}  // namespace shale
