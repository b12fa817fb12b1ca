#include "engine/train/run.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/train/console.h"
#include "engine/train/metrics.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Whether the weights are still those of the last step that was taken. DataLoss: the data or the numbers of a step were
// unusable, and its update was not applied. ResourceExhausted: a full disk refused metrics.
bool WeightsAreGood(const absl::Status& failure) {
  return absl::IsDataLoss(failure) || absl::IsResourceExhausted(failure);
}

absl::Status Save(const Trainer& trainer, const RunFolder& folder, const PrintLine& print) {
  SHALE_RETURN_IF_ERROR(trainer.SaveWeights(folder.weights_path()));
  print(absl::StrCat("saved ", folder.weights_path(), " after step ", trainer.steps_done()));
  return absl::OkStatus();
}

}  // namespace

absl::Status TrainToEnd(Trainer& trainer, RunFolder& folder, const PrintLine& print) {
  Console console(trainer.total_steps(), trainer.job().telemetry.print_every);
  const int64_t save_every = trainer.job().checkpoint.every_steps;
  const auto on_step = [&](const StepReport& report) -> absl::Status {
    if (const std::optional<std::string> line = console.Step(report)) print(*line);
    SHALE_RETURN_IF_ERROR(folder.AppendMetrics(StepMetrics(report)));
    const bool save = save_every > 0 && report.step % save_every == 0 && report.step < trainer.total_steps();
    return save ? Save(trainer, folder, print) : absl::OkStatus();
  };
  const auto on_evaluation = [&](const EvaluationReport& report) {
    print(Console::Evaluation(report.step, report));
    return folder.AppendMetrics(EvaluationMetrics(report.step, report));
  };
  const absl::Status status = trainer.Run({.on_step = on_step, .on_evaluation = on_evaluation});
  if (!status.ok() && !WeightsAreGood(status)) return status;
  const absl::Status saved = Save(trainer, folder, print);
  return status.ok() ? saved : status;
}

}  // namespace shale
