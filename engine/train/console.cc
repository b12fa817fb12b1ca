#include "engine/train/console.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/numbers.h"

namespace shale {
namespace {

constexpr double kSmoothing = 0.1;  // Weight of the newest step in the smoothed time per step.

}  // namespace

double Console::SecondsLeft(int64_t step) const { return step_seconds_ * static_cast<double>(total_steps_ - step); }

std::optional<std::string> Console::Step(const StepReport& report) {
  ++steps_seen_;
  step_seconds_ = steps_seen_ <= 2 ? report.seconds : step_seconds_ + kSmoothing * (report.seconds - step_seconds_);
  tokens_ += report.processed_tokens;
  counted_ += report.step_tokens;
  knows_mfu_ = knows_mfu_ && report.mfu > 0;
  seconds_ += report.seconds;
  mfu_seconds_ += report.mfu * report.seconds;
  const bool due =
      steps_seen_ == 1 || report.step == total_steps_ || report.step % print_every_ == 0 || !report.updated;
  if (!due) return std::nullopt;

  const std::string total = WithCommas(total_steps_);
  std::string line =
      absl::StrFormat("step %*s/%s  loss %.4f  norm %#.3g  lr %.2e", static_cast<int>(total.size()),
                      WithCommas(report.step), total, report.loss, report.gradient_norm, report.learning_rate);
  const double seconds = std::fmax(seconds_, 1e-9);
  const auto rate = [&](int64_t tokens) { return WithCommas(std::llround(static_cast<double>(tokens) / seconds)); };
  absl::StrAppend(&line, "  ", rate(tokens_), " tok/s");
  if (counted_ != tokens_) absl::StrAppend(&line, " (", rate(counted_), " counted)");
  if (knows_mfu_) absl::StrAppendFormat(&line, "  mfu %.1f%%", 100 * mfu_seconds_ / seconds);
  absl::StrAppend(&line, "  memory ", FormatBytes(report.peak_bytes_measured), "  eta ",
                  FormatDuration(SecondsLeft(report.step)));
  if (!report.updated) {
    absl::StrAppend(
        &line, report.step_tokens == 0 ? "  (no valid token: weights unchanged)" : "  (not finite: update skipped)");
  }
  tokens_ = counted_ = 0;
  seconds_ = mfu_seconds_ = 0;
  knows_mfu_ = true;
  return line;
}

std::string Console::Evaluation(int64_t step, const EvaluationReport& report) {
  const auto line = [](double loss, int64_t tokens) {
    return absl::StrCat(LossText(loss), "  over ", WithCommas(tokens), " tokens");
  };
  std::string text = absl::StrCat("evaluation at step ", WithCommas(step), "  ", line(report.loss, report.tokens));
  for (const SourceLoss& source : report.sources) {
    absl::StrAppend(&text, "\n  ", source.name, "  ", line(source.loss, source.tokens));
  }
  return text;
}

std::string Console::Checkpoint(const CheckpointReport& report) {
  if (!report.status.ok()) return absl::StrCat("NOT SAVED: ", report.status.message());
  std::string line = absl::StrFormat("saved %s  %s in %.2fs", report.path, FormatBytes(report.bytes), report.seconds);
  if (!report.thinning.ok()) absl::StrAppend(&line, "; NOT REMOVED: an older one: ", report.thinning.message());
  return line;
}

}  // namespace shale
