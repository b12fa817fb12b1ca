#include "engine/train/run.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/train/console.h"
#include "engine/train/metrics.h"
#include "kernels/check.h"

namespace shale {
namespace {

bool Due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

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

absl::Status Evaluate(Trainer& trainer, RunFolder& folder, const PrintLine& print) {
  SHALE_ASSIGN_OR_RETURN(const EvaluationReport report,
                         trainer.Evaluate(trainer.job().telemetry.evaluation_batches));
  print(Console::Evaluation(trainer.steps_done(), report));
  return folder.AppendMetrics(EvaluationMetrics(trainer.steps_done(), report));
}

// One step and what is due after it.
absl::Status Advance(Trainer& trainer, RunFolder& folder, const PrintLine& print, Console& console) {
  const Job& job = trainer.job();
  SHALE_ASSIGN_OR_RETURN(const StepReport report, trainer.Step());
  if (const std::optional<std::string> line = console.Step(report)) print(*line);
  SHALE_RETURN_IF_ERROR(folder.AppendMetrics(StepMetrics(report)));
  const bool last = report.step == trainer.total_steps();
  if (!last && Due(report.step, job.checkpoint.every_steps)) SHALE_RETURN_IF_ERROR(Save(trainer, folder, print));
  // A run that was told to stop does so without another pass over evaluation data.
  const bool stopping = trainer.done() && !last;
  if (!trainer.has_evaluation_data() || stopping) return absl::OkStatus();
  return last || Due(report.step, job.telemetry.evaluate_every) ? Evaluate(trainer, folder, print) : absl::OkStatus();
}

}  // namespace

absl::Status TrainToEnd(Trainer& trainer, RunFolder& folder, const PrintLine& print) {
  Console console(trainer.total_steps(), trainer.job().telemetry.print_every);
  absl::Status status;
  while (status.ok() && !trainer.done()) status = Advance(trainer, folder, print, console);
  if (!status.ok() && !WeightsAreGood(status)) return status;
  const absl::Status saved = Save(trainer, folder, print);
  return status.ok() ? saved : status;
}

}  // namespace shale
