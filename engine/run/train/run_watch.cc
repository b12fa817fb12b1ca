#include "engine/run/train/run_watch.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/plan/time/prediction.h"
#include "engine/run/train/processes.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr absl::string_view kNoTargets =
    "; the loss counts what an assistant says, or what data.loss_on and the data's own masks leave: look at these, and "
    "at batch.sequence_length, which may cut the answers off";

constexpr size_t kMostStragglersListed = 8;

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
  const bool finite = std::isfinite(report.loss) && std::isfinite(report.gradient_norm);
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

std::string StragglerMonitor::Add(double step_seconds, absl::Span<const double> waited_seconds) {
  if (waited_seconds.size() < 2) return "";
  slow_steps_.resize(waited_seconds.size());
  const double least = *std::min_element(waited_seconds.begin(), waited_seconds.end());
  std::vector<double> own;
  for (const double waited : waited_seconds) own.push_back(step_seconds - (waited - least));
  std::vector<double> sorted = own;
  const size_t middle = (sorted.size() - 1) / 2;  // Of two ranks, the faster one.
  std::nth_element(sorted.begin(), sorted.begin() + middle, sorted.end());
  const double median = sorted[middle];
  std::vector<std::string> named;
  for (size_t rank = 0; rank < own.size(); ++rank) {
    const bool slow = own[rank] > (1 + kSlower) * median;
    slow_steps_[rank] = slow ? slow_steps_[rank] + 1 : 0;
    if (slow_steps_[rank] == kSteps) named.push_back(absl::StrCat(rank));
  }
  if (named.empty()) return "";
  const size_t listed = std::min(named.size(), kMostStragglersListed);
  const std::string more = named.size() > listed ? absl::StrCat(" and ", named.size() - listed, " more") : "";
  return absl::StrFormat(
      "slow: %s %s%s took more than %.0f %% longer than the median rank in each of %d steps; of the "
      "last step's %.3g s, the median rank worked %.3g s",
      named.size() == 1 ? "rank" : "ranks", absl::StrJoin(named.begin(), named.begin() + listed, ", "), more,
      kSlower * 100, kSteps, step_seconds, median);
}

absl::Status StepMonitor::AfterStep(LocalStep step, StepReport& report) {
  const StepNote mine = {.stop = stop_.load(std::memory_order_relaxed),
                         .wants_trace = step.wants_trace,
                         .peak_bytes = report.peak_bytes_measured,
                         .flops = step.document_flops,
                         .waited_ns = std::move(step.waited_ns),
                         .longest = std::move(step.longest)};
  std::vector<std::string> all = {Serialize(mine)};
  if (control_.processes() > 1) {
    SHALE_ASSIGN_OR_RETURN(all, control_.Gather(ControlChannel::kSteps, std::move(all[0])));
  }
  std::vector<double> waited_seconds(ranks_);
  double flops = step.flops;
  wants_trace_ = false;
  longest_of_job_ = {};
  for (const std::string& message : all) {
    SHALE_ASSIGN_OR_RETURN(StepNote note, ParseStepNote(message));
    report.peak_bytes_measured = std::max(report.peak_bytes_measured, note.peak_bytes);
    stop_agreed_ = stop_agreed_ || note.stop;
    wants_trace_ = wants_trace_ || note.wants_trace;
    flops += note.flops;
    const bool longer = longest_of_job_.rank < 0 || note.longest.own_seconds > longest_of_job_.own_seconds;
    if (note.longest.rank >= 0 && longer) longest_of_job_ = std::move(note.longest);
    for (const auto& [rank, rank_waited_ns] : note.waited_ns) {
      if (rank < 0 || rank >= ranks_) return absl::InternalError("a process sent a wrong rank");
      waited_seconds[rank] = static_cast<double>(rank_waited_ns) / 1e9;
    }
  }
  report.mfu = MfuOf(flops, report.seconds, peak_flops_, ranks_);
  slow_ranks_ = control_.process() == 0 ? stragglers_.Add(report.seconds, waited_seconds) : "";
  warnings_ = doubts_.Add(report);
  return absl::OkStatus();
}

void EvaluationHistory::GoOnAfter(const SavedEvaluations& saved) {
  if (saved.data == data_) saved_ = saved;
}

bool EvaluationHistory::Add(int64_t step, double loss) {
  saved_.data = data_;
  saved_.last_step = step;
  saved_.last_loss.reset();
  if (std::isfinite(loss)) saved_.last_loss = loss;
  if (!saved_.last_loss || (saved_.best_loss && loss >= *saved_.best_loss)) {
    ++saved_.since_best;
    return false;
  }
  saved_.best_loss = loss;
  saved_.best_step = step;
  saved_.since_best = 0;
  return true;
}

std::string EvaluationHistory::WhyItEnds() const {
  const std::string evaluations = Plural(saved_.since_best, "evaluation");
  if (!saved_.best_loss) return absl::StrCat("the evaluation loss was not finite in ", evaluations);
  return absl::StrFormat("the evaluation loss was not below %.4f, that of step %d, in %s", *saved_.best_loss,
                         saved_.best_step, evaluations);
}

}  // namespace shale
