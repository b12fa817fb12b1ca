#include "engine/train/run.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/events/event_json.h"
#include "engine/train/console.h"

namespace shale {

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

}  // namespace shale
