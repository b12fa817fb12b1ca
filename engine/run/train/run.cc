#include "engine/run/train/run.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/api/events.h"
#include "engine/files/io/file.h"
#include "engine/run/events/event_json.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr double kSmoothing = 0.1;  // Weight of the newest step in the smoothed time per step.

// Returns OK unless a part of `path`, which lies in the run folder, is a link, through which the run would write
// elsewhere. A job may name a path elsewhere itself.
absl::Status CheckNoLinkTo(absl::string_view run_folder, const std::string& path) {
  if (absl::StartsWith(path, "/")) return absl::OkStatus();
  std::string at(run_folder);
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    at = JoinPath(at, part);
    if (!IsLink(at)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(at, " is a link, through which a run does not write: remove it, or name where it leads"));
  }
  return absl::OkStatus();
}

// Opens what writes events to `path`, which the job gives relative to the run folder.
template <class Open>
absl::StatusOr<std::unique_ptr<EventWriter>> OpenIn(absl::string_view run_folder, const std::string& path, Open open) {
  SHALE_RETURN_IF_ERROR(CheckNoLinkTo(run_folder, path));
  return open(JoinPath(run_folder, path));
}

}  // namespace

absl::Status TrainToEnd(Trainer& trainer, RunFolder& folder, const PrintLine& print) {
  Console console(trainer.total_steps(), trainer.job().telemetry.print_every);
  const bool must_save = trainer.job().checkpoint.on_failure == SaveFailure::kStop;
  bool lost_rows = false, told_memory = false;
  const auto append = [&](const JsonObject& row) {
    const absl::Status status = folder.AppendMetrics(row);
    if (status.ok() || must_save) return status;
    if (!lost_rows) print(absl::StrCat("NOT SAVED: metrics from here on: ", status.message()));
    lost_rows = true;
    return absl::OkStatus();
  };
  const auto on_step = [&](const StepReport& report) -> absl::Status {
    if (const std::optional<std::string> line = console.Step(report)) print(*line);
    if (!std::exchange(told_memory, true) && !trainer.devices().late_memory.empty())
      print(trainer.devices().late_memory);
    if (!trainer.devices().slow_ranks.empty()) print(trainer.devices().slow_ranks);
    for (const std::string& warning : trainer.warnings()) print(absl::StrCat("warning: ", warning));
    return append(EventFields({.what = report}));
  };
  const auto on_evaluation = [&](const EvaluationReport& report) {
    print(Console::Evaluation(report.step, report));
    return append(EventFields({.what = report}));
  };
  const auto on_checkpoint = [&](const CheckpointReport& report) -> absl::Status {
    print(Console::Checkpoint(report));
    if (!report.status.ok()) return absl::OkStatus();
    const absl::Status noted = folder.NoteSaved(report.step);
    return must_save ? noted : absl::OkStatus();
  };
  return trainer.Run({.on_step = on_step, .on_evaluation = on_evaluation, .on_checkpoint = on_checkpoint});
}

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
        &line, report.step_tokens == 0 ? "  (no valid token: weights unchanged)"
               : report.loss_scale > 0
                   ? absl::StrFormat("  (gradients overflowed: update skipped, loss scale now %.4g)", report.loss_scale)
                   : "  (not finite: update skipped)");
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

RunSinks::RunSinks(const SinksConfig& config) {
  const auto add = [&](const char* field, const std::string& path, auto open) {
    if (!path.empty()) sinks_.push_back({field, path, open, std::make_unique<EventQueue>()});
  };
  add("telemetry.sinks.events", config.events, WriteJsonFile);
  add("telemetry.sinks.tensorboard", config.tensorboard, WriteTensorBoard);
  add("telemetry.sinks.prometheus", config.prometheus, WritePrometheus);
}

absl::Status RunSinks::Open(absl::string_view run_folder) {
  absl::Status first;
  for (Sink& place : sinks_) {
    absl::StatusOr<std::unique_ptr<EventWriter>> writer = OpenIn(run_folder, place.path, place.open);
    if (writer.ok()) {
      place.queue->Start(*std::move(writer));
    } else {
      const absl::Status& status = writer.status();
      first.Update(absl::Status(status.code(), absl::StrCat(place.field, ": ", status.message())));
    }
  }
  return first;
}

void RunSinks::Take(const RunEvent& event) {
  for (const Sink& place : sinks_) place.queue->Take(event);
}

std::vector<std::string> RunSinks::Close() {
  std::vector<std::string> lines;
  for (const Sink& place : sinks_) {
    place.queue->Close();
    if (const absl::Status error = place.queue->error(); !error.ok()) {
      lines.push_back(absl::StrCat("NOT WRITTEN: events for ", place.field, ": ", error.message()));
    }
    if (const int64_t dropped = place.queue->dropped(); dropped > 0) {
      lines.push_back(absl::StrCat("NOT WRITTEN: ", Plural(dropped, "event"), " for ", place.field, ": ", place.path,
                                   " was too slow"));
    }
  }
  return lines;
}

}  // namespace shale
