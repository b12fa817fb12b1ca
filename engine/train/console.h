// Makes the lines that a run prints while it trains.
//
//   step  12/400  loss 2.7312  norm 0.81  lr 1.20e-03  34,120 tok/s  mfu 41.2%  memory 212 MiB  eta 1m 32s
//   evaluation at step 100  loss 2.5010  perplexity 12.19  over 16,384 tokens
//   saved runs/a/checkpoints/step-0000000100  21.4 MiB in 0.08s
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/api/trainer.h"

namespace shale {

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

}  // namespace shale
