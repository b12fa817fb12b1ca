// LearningRateSchedule computes the learning rate of every step.
//
// The run has N steps, s = 0 .. N - 1. A step has G sequences of S tokens.
//
//   rate(s) = peak * scale(G) * curve(s)
//
//   scale   kConstant 1, kLinear G / base_batch, kSquareRoot sqrt(G / base_batch). Depends on the global batch alone,
//           never on the number of ranks.
//   warm-up Takes w steps, given in steps, samples (w = ceil(samples / G)) or tokens (w = ceil(tokens / (G S))):
//           curve(s) = (s + 1) / w for s < w. The rate of step 0 is above 0, and step w - 1 is the first at the peak.
//   shape   For s >= w, with f = final_fraction, the first step at the peak a = max(w - 1, 0), and x(s) growing from 0
//           at step a to 1 at step N - 1:
//             kConstant          1
//             kLinear            1 - (1 - f) x,                       x = (s - a) / (N - 1 - a)
//             kCosine            f + (1 - f) (1 + cos(pi x)) / 2,     x = (s - a) / (N - 1 - a)
//             kWarmupStableDecay 1 - (1 - f) x,                       x = (s - (N - 1 - D)) / D, and 0 before that
//           D = max(1, round(decay_fraction N)) is the number of steps below the peak at the end of the run.
//
// A shape that decays reaches f at step N - 1 and stays there for all later steps (of a run that is prolonged without a
// new schedule). Exception: kLinear and kCosine never decay if a >= N - 1, because the run ends with the warm-up or has
// a single step.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/plan/config/job.h"

namespace shale {

enum class WarmupUnit { kSteps, kSamples, kTokens };

struct LearningRateOptions {
  LearningRateShape shape = LearningRateShape::kConstant;
  double peak = 3e-4;  // Before scaling. Finite, at least 0.
  int64_t steps = 1;   // N
  int64_t warmup = 0;  // Length of the warm-up, in warmup_unit.
  WarmupUnit warmup_unit = WarmupUnit::kSteps;
  double final_fraction = 0.1;  // f, in [0, 1]. kConstant does not read it.
  double decay_fraction = 0.2;  // In (0, 1]. Only kWarmupStableDecay reads it.
  LearningRateScaling scaling = LearningRateScaling::kConstant;
  int64_t base_batch = 0;       // In sequences. Not read if scaling is kConstant.
  int64_t global_batch = 1;     // G
  int64_t sequence_length = 1;  // S
};

// Returns the options of a job's run of `total_steps` steps.
LearningRateOptions LearningRateOptionsFor(const Job& job, int64_t total_steps);

// A copyable value. Safe to read from any thread.
class LearningRateSchedule {
 public:
  // Returns InvalidArgument if an option is out of its range, or if warm-up and decay (kWarmupStableDecay) together are
  // longer than the run.
  static absl::StatusOr<LearningRateSchedule> Create(const LearningRateOptions& options);

  // Returns the learning rate of a step. REQUIRES: step >= 0.
  double At(int64_t step) const;

  double peak() const { return peak_; }                   // peak * scale(G)
  int64_t warmup_steps() const { return warmup_steps_; }  // w
  // Returns the last step at the peak before the decay: a, or N - 1 - D. Returns N - 1 or more if the rate never
  // decays.
  int64_t decline_begin() const { return decline_begin_; }

 private:
  LearningRateSchedule() = default;

  LearningRateShape shape_ = LearningRateShape::kConstant;
  double peak_ = 0;
  double final_fraction_ = 1;
  int64_t warmup_steps_ = 0;
  int64_t decline_begin_ = 0;
  int64_t last_step_ = 0;  // N - 1
};

}  // namespace shale
