// The learning rate of every step.
//
// N steps in the run, s = 0 .. N - 1 the step, G sequences of S tokens in a step.
//
//   rate(s) = peak * scale(G) * curve(s)
//
//   scale   kNone 1, kLinear G / base_batch, kSquareRoot sqrt(G / base_batch): a function of the batch alone, never of
//           the number of ranks.
//   warm-up w steps, given as such or as samples (w = ceil(samples / G)) or tokens (w = ceil(tokens / (G S))):
//           curve(s) = (s + 1) / w for s < w, so that step 0 moves and step w - 1 is the first at the peak.
//   shape   for s >= w, with f = final_fraction; a = max(w - 1, 0), the first step at the peak; and x(s) running from 0
//           at step a to 1 at step N - 1:
//             kConstant          1
//             kLinear            1 - (1 - f) x,                       x = (s - a) / (N - 1 - a)
//             kCosine            f + (1 - f) (1 + cos(pi x)) / 2,     x = (s - a) / (N - 1 - a)
//             kWarmupStableDecay 1 - (1 - f) x,                       x = (s - (N - 1 - D)) / D, and 0 before that
//           where D = max(1, round(decay_fraction N)) is the number of steps below the peak, at the end.
//
// Step N - 1 is the first at f, and so is any step after it (a run that is prolonged without a new schedule). If w >= N
// the run ends before it has warmed up, and nothing decays.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace shale {

enum class LearningRateShape { kConstant, kLinear, kCosine, kWarmupStableDecay };
enum class LearningRateScaling { kNone, kLinear, kSquareRoot };
enum class WarmupUnit { kSteps, kSamples, kTokens };

struct LearningRateOptions {
  LearningRateShape shape = LearningRateShape::kConstant;
  double peak = 3e-4;  // Before scaling. Finite, at least 0.
  int64_t steps = 1;   // N
  int64_t warmup = 0;  // In units of warmup_unit.
  WarmupUnit warmup_unit = WarmupUnit::kSteps;
  double final_fraction = 0.1;  // f, in [0, 1]. kConstant does not read it.
  double decay_fraction = 0.2;  // In (0, 1]. Only kWarmupStableDecay reads it.
  LearningRateScaling scaling = LearningRateScaling::kNone;
  int64_t base_batch = 0;       // Sequences. Read unless scaling is kNone.
  int64_t global_batch = 1;     // G
  int64_t sequence_length = 1;  // S
};

// A copyable value. Safe to read from any thread.
class LearningRateSchedule {
 public:
  // InvalidArgument if an option is out of its range, or if a warm-up and a decay (kWarmupStableDecay) together are
  // longer than the run.
  static absl::StatusOr<LearningRateSchedule> Create(const LearningRateOptions& options);

  // The rate of a step. REQUIRES: step >= 0.
  double At(int64_t step) const;

  double peak() const { return peak_; }                   // Scaled.
  int64_t warmup_steps() const { return warmup_steps_; }  // w
  // The last step at the peak before the decline (a, or N - 1 - D); N - 1 or later if nothing declines.
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
