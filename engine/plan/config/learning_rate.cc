#include "engine/plan/config/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numbers>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::Status CheckOptions(const LearningRateOptions& options) {
  if (!std::isfinite(options.peak) || options.peak < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the learning rate must be a finite number of at least 0; found ", options.peak));
  }
  for (const auto& [value, name] : {std::pair(options.steps, "number of steps"),
                                    {options.global_batch, "global batch"},
                                    {options.sequence_length, "sequence length"}}) {
    if (value < 1) return absl::InvalidArgumentError(absl::StrCat("the ", name, " must be at least 1; found ", value));
  }
  if (options.warmup < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the warm-up must be at least 0; found ", options.warmup));
  }
  if (!(options.final_fraction >= 0 && options.final_fraction <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("final_fraction must lie in [0, 1]; found ", options.final_fraction));
  }
  if (!(options.decay_fraction > 0 && options.decay_fraction <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("decay_fraction must lie in (0, 1]; found ", options.decay_fraction));
  }
  if (options.scaling != LearningRateScaling::kConstant && options.base_batch < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "scaling the learning rate by the batch needs a base_batch of at least 1; found ", options.base_batch));
  }
  return absl::OkStatus();
}

double Scale(const LearningRateOptions& options) {
  if (options.scaling == LearningRateScaling::kConstant) return 1;
  const double ratio = static_cast<double>(options.global_batch) / static_cast<double>(options.base_batch);
  return options.scaling == LearningRateScaling::kLinear ? ratio : std::sqrt(ratio);
}

absl::StatusOr<int64_t> WarmupSteps(const LearningRateOptions& options) {
  int64_t per_step = 1;
  if (options.warmup_unit == WarmupUnit::kSamples) per_step = options.global_batch;
  if (options.warmup_unit == WarmupUnit::kTokens &&
      __builtin_mul_overflow(options.global_batch, options.sequence_length, &per_step)) {
    return absl::InvalidArgumentError(absl::StrCat("a global batch of ", options.global_batch, " sequences of ",
                                                   options.sequence_length, " tokens has too many tokens to count"));
  }
  return options.warmup / per_step + (options.warmup % per_step != 0);
}

}  // namespace

LearningRateOptions LearningRateOptionsFor(const Job& job, int64_t total_steps) {
  const LearningRateConfig& config = job.lr_schedule;
  LearningRateOptions options;
  options.shape = config.shape;
  options.peak = job.optimizer.learning_rate;
  options.steps = total_steps;
  if (config.warmup_steps > 0) {
    options.warmup = config.warmup_steps;
  } else if (config.warmup_samples > 0) {
    options.warmup = config.warmup_samples;
    options.warmup_unit = WarmupUnit::kSamples;
  } else if (config.warmup_tokens > 0) {
    options.warmup = config.warmup_tokens;
    options.warmup_unit = WarmupUnit::kTokens;
  }
  options.final_fraction = config.final_fraction;
  options.decay_fraction = config.decay_fraction;
  options.scaling = job.optimizer.scaling;
  options.base_batch = job.optimizer.base_batch;
  options.global_batch = job.batch.global_batch;
  options.sequence_length = job.batch.sequence_length;
  return options;
}

absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(const LearningRateOptions& options) {
  SHALE_RETURN_IF_ERROR(CheckOptions(options));
  LearningRateSchedule schedule;
  schedule.shape_ = options.shape;
  schedule.peak_ = options.peak * Scale(options);
  if (!std::isfinite(schedule.peak_)) {
    return absl::InvalidArgumentError(absl::StrCat("a learning rate of ", options.peak, " scaled from a batch of ",
                                                   options.base_batch, " to ", options.global_batch, " is not finite"));
  }
  SHALE_ASSIGN_OR_RETURN(schedule.warmup_steps_, WarmupSteps(options));
  schedule.last_step_ = options.steps - 1;
  schedule.final_fraction_ = options.final_fraction;
  schedule.decline_begin_ = std::max<int64_t>(schedule.warmup_steps_ - 1, 0);
  if (options.shape == LearningRateShape::kConstant) schedule.decline_begin_ = schedule.last_step_;
  if (options.shape == LearningRateShape::kWarmupStableDecay) {
    const double share = options.decay_fraction * static_cast<double>(options.steps);
    const int64_t decay_steps = std::max<int64_t>(1, std::llround(share));
    if (schedule.warmup_steps_ > options.steps - decay_steps) {
      return absl::InvalidArgumentError(absl::StrCat("a warm-up of ", schedule.warmup_steps_, " steps and a decay of ",
                                                     decay_steps, " do not fit into a run of ", options.steps,
                                                     "; shorten the warm-up to ", options.steps - decay_steps,
                                                     " steps or lower decay_fraction (", options.decay_fraction, ")"));
    }
    schedule.decline_begin_ = schedule.last_step_ - decay_steps;
  }
  return schedule;
}

double LearningRateSchedule::At(int64_t step) const {
  SHALE_CHECK(step >= 0) << "step " << step;
  // Divide before multiplying: w / w is exactly 1, so that the warm-up ends exactly at the peak.
  if (step < warmup_steps_) return peak_ * (static_cast<double>(step + 1) / static_cast<double>(warmup_steps_));
  if (shape_ == LearningRateShape::kConstant || step <= decline_begin_ || decline_begin_ >= last_step_) return peak_;
  if (step >= last_step_) return peak_ * final_fraction_;
  const double x = static_cast<double>(step - decline_begin_) / static_cast<double>(last_step_ - decline_begin_);
  const double remaining = shape_ == LearningRateShape::kCosine ? (1 + std::cos(std::numbers::pi * x)) / 2 : 1 - x;
  return peak_ * (final_fraction_ + (1 - final_fraction_) * remaining);
}

}  // namespace shale
