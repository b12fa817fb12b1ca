#include "engine/run/verify/trial_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/types/span.h"
#include "engine/plan/planner/step_facts.h"
#include "kernels/check.h"

namespace shale {

double LargestDistance(const ParameterValues& a, const ParameterValues& b, std::string* worst) {
  double total = 0;
  for (const auto& [name, values] : b) {
    for (float v : values) total += static_cast<double>(v) * v;
  }
  const double floor = 1e-3 * std::sqrt(total);
  double largest = 0;
  for (const auto& [name, values] : b) {
    const std::vector<float>& other = a.at(name);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double d = static_cast<double>(other[i]) - values[i];
      difference += d * d;
      norm += static_cast<double>(values[i]) * values[i];
    }
    if (difference == 0) continue;  // Also where all gradients are 0, and with them the floor.
    const double distance = std::sqrt(difference) / std::max(std::sqrt(norm), floor);
    if (distance <= largest) continue;
    if (worst != nullptr) *worst = name;
    if (!std::isfinite(distance)) return std::numeric_limits<double>::infinity();
    largest = distance;
  }
  return largest;
}

double ReorderedTolerance(int64_t targets, bool rounded) {
  return rounded ? 1e-2 : 40 * 0x1p-24 * std::sqrt(static_cast<double>(std::max<int64_t>(1, targets)));
}

absl::Status TrialContext::CheckCancelled() const {
  if (cancelled == nullptr || !cancelled->load(std::memory_order_relaxed)) return absl::OkStatus();
  return absl::CancelledError("the verification was cancelled");
}

absl::StatusOr<std::unique_ptr<TrialRun>> TrialRun::Start(TrialContext& context, const std::string& name,
                                                          const Job& job, const Options& options) {
  SHALE_RETURN_IF_ERROR(context.CheckCancelled());
  auto trial = absl::WrapUnique(new TrialRun(context, name));
  SHALE_ASSIGN_OR_RETURN(trial->trainer_, Trainer::Create(job, {.backend = context.backend,
                                                                .data = &trial->trained_,
                                                                .evaluation_data = &trial->evaluated_,
                                                                .checkpoint_folder = options.checkpoint_folder,
                                                                .resume = options.resume}));
  return trial;
}

absl::StatusOr<TrialRecord> TrialRun::Run(int steps, Keep keep) {
  TrialRecord record;
  if (context_.machine != nullptr) {
    record.predicted_seconds = PredictStep(trainer_->job(), trainer_->plan(), *context_.machine).step_seconds;
  }
  const std::vector<Parameter>& parameters = trainer_->state().parameters();
  for (int step = 0; step < steps; ++step) {
    SHALE_RETURN_IF_ERROR(context_.CheckCancelled());
    SHALE_ASSIGN_OR_RETURN(const StepReport report, trainer_->Step());
    record.losses.push_back(report.loss);
    record.last_seconds = report.seconds;
    if (step == 0) {
      context_.peaks.push_back({.trial = name_,
                                .planned_bytes = trainer_->plan().train.memory.peak_bytes,
                                .measured_bytes = report.peak_bytes_measured});
    }
    if (step > 0 || keep != Keep::kGradientsAndWeights) continue;
    for (const Parameter& parameter : parameters) {
      if (parameter.frozen) continue;
      SHALE_ASSIGN_OR_RETURN(record.gradients[parameter.name], ReadGradients(*trainer_, parameter));
    }
  }
  if (keep == Keep::kLosses) return record;
  for (const Parameter& parameter : parameters) {
    SHALE_ASSIGN_OR_RETURN(record.weights[parameter.name], ReadWeights(*trainer_, parameter));
  }
  return record;
}

absl::StatusOr<double> TrialRun::Evaluate() {
  SHALE_RETURN_IF_ERROR(context_.CheckCancelled());
  SHALE_ASSIGN_OR_RETURN(const EvaluationReport report, trainer_->Evaluate(trainer_->job().batch.global_batch));
  return report.loss;
}

absl::StatusOr<std::vector<float>> ReadWeights(const Trainer& trainer, const Parameter& parameter) {
  std::vector<float> values(parameter.elements());
  SHALE_RETURN_IF_ERROR(trainer.state().ReadParameter(parameter.name, absl::MakeSpan(values)));
  return values;
}

absl::StatusOr<std::vector<float>> ReadGradients(const Trainer& trainer, const Parameter& parameter) {
  std::vector<float> values(parameter.elements());
  SHALE_RETURN_IF_ERROR(trainer.state().ReadGradient(parameter.name, absl::MakeSpan(values)));
  return values;
}

}  // namespace shale
