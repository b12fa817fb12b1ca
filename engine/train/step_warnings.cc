#include "engine/train/step_warnings.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/numbers.h"

namespace shale {
namespace {

constexpr absl::string_view kNoTargets =
    "; the loss counts what an assistant says, or what data.loss_on and the data's own masks leave: look at these, and "
    "at batch.sequence_length, which may cut the answers off";

}  // namespace

std::string StepWarnings::NoGradient() const {
  std::string text = absl::StrCat("the gradient has been exactly 0 in ", Plural(without_gradient_, "step"),
                                  " up to step ", last_step_, ", so the weights learn nothing");
  const double uniform = std::log(static_cast<double>(vocabulary_));
  // Losses of uniform logits differ from ln V by rounding only.
  if (vocabulary_ > 1 && std::abs(loss_ - uniform) < 1e-3 * uniform) {
    absl::StrAppend(&text, absl::StrFormat("; the loss %.4f is ln %d: every token is equally likely, whatever the "
                                           "model reads",
                                           loss_, vocabulary_));
  }
  absl::StrAppend(&text, "; resume from a checkpoint before it with a lower optimizer.learning_rate");
  return text;
}

std::vector<std::string> StepWarnings::Add(const StepReport& report) {
  std::vector<std::string> lines;
  ++steps_;
  last_step_ = report.step;
  loss_ = report.loss;
  const bool finite = std::isfinite(report.loss);
  const bool counts = report.updated || !finite;
  without_targets_ = counts ? 0 : without_targets_ + 1;
  // A step without targets has no gradient, and says nothing about the weights.
  if (counts) without_gradient_ = finite && report.gradient_norm == 0 ? without_gradient_ + 1 : 0;
  if (without_targets_ == kSteps) {
    lines.push_back(absl::StrCat("no target has counted in ", kSteps, " steps", kNoTargets));
  }
  if (counts && without_gradient_ == kSteps) lines.push_back(NoGradient());
  if (has_peak_ && report.mfu == 0 && report.processed_tokens > 0 && !told_mfu_) {
    told_mfu_ = true;
    lines.push_back(
        "mfu is not known: a step had more FLOP/s than the peak, which was measured too low, as on a busy machine; set "
        "telemetry.peak_flops");
  }
  return lines;
}

absl::Status StepWarnings::AtEnd(int64_t tokens) const {
  if (steps_ == 0) return absl::OkStatus();
  const int64_t enough = std::min(steps_, kSteps);
  if (without_targets_ == steps_ && (tokens == 0 || without_targets_ >= kSteps)) {
    return absl::FailedPreconditionError(absl::StrCat("no target has counted in any of ", Plural(steps_, "step"),
                                                      ", so nothing was trained", kNoTargets));
  }
  if (without_gradient_ >= enough) return absl::FailedPreconditionError(NoGradient());
  return absl::OkStatus();
}

}  // namespace shale
