#include "engine/verify/loss_checks.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "engine/verify/culprit.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns whether a position of a sample has a target that counts.
bool Counts(const RecordedSamples& samples, const absl::Span<const int32_t> targets, int64_t position) {
  if (targets.empty()) return !samples.last_target_only || position == samples.description.sequence_length - 1;
  return targets[position] >= 0;  // Targets that the model does not read are masked.
}

// What the engine divides the sum of losses by.
double Divisor(const RecordedSamples& samples, int64_t count, TargetWeights kind, const RecordedSource::Edit& edit) {
  double divisor = 0;
  for (int64_t i = 0; i < count; ++i) {
    RecordedSample sample = samples.samples[i];
    if (edit) edit(i, {.targets = absl::MakeSpan(sample.targets), .weights = absl::MakeSpan(sample.weights)});
    for (int64_t p = 0; p < samples.description.sequence_length; ++p) {
      if (!Counts(samples, sample.targets, p)) continue;
      divisor += kind == TargetWeights::kOverWeights ? std::abs(sample.weights[p]) : 1;
    }
  }
  return divisor;
}

// Multiplies all weights.
RecordedSource::Edit Times(float factor) {
  return [factor](int64_t, const SampleParts& parts) {
    for (float& w : parts.weights) w *= factor;
  };
}

// Takes every second target out, or the others: by its weight if there are weights, else by masking it.
RecordedSource::Edit Half(bool weighted, int64_t half) {
  return [=](int64_t sample, const SampleParts& parts) {
    const int64_t length = std::max(std::ssize(parts.targets), std::ssize(parts.weights));
    for (int64_t p = 0; p < length; ++p) {
      // The last positions of neighbors lie in different halves too, for models that read no others.
      if ((length - 1 - p + sample) % 2 == half) continue;
      if (weighted) {
        parts.weights[p] = 0;
      } else {
        parts.targets[p] = kMaskedTarget;
      }
    }
  };
}

struct LossPart {
  std::string name;
  double sum = 0, wanted = 0;
};

}  // namespace

int64_t CountTargets(const RecordedSamples& samples, int64_t count) {
  return static_cast<int64_t>(Divisor(samples, count, TargetWeights::kNone, {}));
}

std::vector<VerifyRow> CheckLoss(VerifiedJob& verified, const TrialRecord& compared) {
  const RecordedSamples& samples = verified.context.samples;
  const TargetWeights kind = verified.job.data.target_weights;
  const bool weighted = kind != TargetWeights::kNone;
  const int64_t G = verified.size.global_batch();
  // Sums in another order. What a target computes is the same, so its loss has the same bits.
  const double tolerance = ReorderedTolerance(verified.targets, /*rounded=*/false);
  VerifyRow evaluation = {.check = "evaluation", .against = "the step's loss", .tolerance = tolerance};
  VerifyRow parts = {.check = weighted ? "target weights" : "masked targets",
                     .against = "the loss of all targets",
                     .tolerance = tolerance};
  const auto run = [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<TrialRun> trial,
                           TrialRun::Start(verified.context, "evaluation", ComparedJob(verified.job, verified.size)));
    const std::string op = LossOpOf(trial->trainer().plan().train.graph);
    // Returns the sum of the losses after an edit.
    const auto sum_after = [&](const RecordedSource::Edit& edit) -> absl::StatusOr<double> {
      trial->evaluated().SetEdit(edit);
      SHALE_ASSIGN_OR_RETURN(const double loss, trial->Evaluate());
      return loss * Divisor(samples, G, kind, edit);
    };
    SHALE_ASSIGN_OR_RETURN(const double all, sum_after({}));
    const double step = compared.losses[0] * Divisor(samples, G, kind, {});
    double size = std::abs(all);
    if (weighted) {
      SHALE_ASSIGN_OR_RETURN(size, sum_after([](int64_t, const SampleParts& sample) {
                               for (float& w : sample.weights) w = std::abs(w);
                             }));
      size = std::max(std::abs(size), std::abs(all));
    }
    const auto relative = [&](double a, double b) { return a == b ? 0 : std::abs(a - b) / std::max(size, 1e-300); };
    evaluation.difference = relative(all, step);
    if (!(evaluation.difference <= tolerance)) {
      evaluation.outcome = VerifyOutcome::kFails;
      evaluation.remark = absl::StrFormat(
          "the sum of the losses is %.9g in an evaluation, and %.9g in the step on the same samples: look at %s, which "
          "computes no gradient in an evaluation, and at whether the model's function builds the same for both",
          all, step, op);
    }
    if (!weighted && samples.description.target_values > 0) {
      parts.outcome = VerifyOutcome::kNotRun;
      parts.remark = "the targets are values and have no weights (data.target_weights), so none can be taken out";
      return absl::OkStatus();
    }
    SHALE_ASSIGN_OR_RETURN(const double even, sum_after(Half(weighted, 0)));
    SHALE_ASSIGN_OR_RETURN(const double odd, sum_after(Half(weighted, 1)));
    std::vector<LossPart> found = {{weighted ? "two halves, each with the weights of the other set to 0,"
                                             : "two halves, each with the other masked,",
                                    even + odd, all}};
    if (weighted) {
      SHALE_ASSIGN_OR_RETURN(const double twice, sum_after(Times(2)));
      SHALE_ASSIGN_OR_RETURN(const double negated, sum_after(Times(-1)));
      found.push_back({"doubled weights", twice, 2 * all});
      found.push_back({"negated weights", negated, -all});
    }
    for (const LossPart& part : found) {
      const double difference = relative(part.sum, part.wanted);
      parts.difference = std::max(parts.difference, difference);
      if (difference <= tolerance || parts.outcome == VerifyOutcome::kFails) continue;
      parts.outcome = VerifyOutcome::kFails;
      parts.remark = absl::StrFormat(
          "the loss forgets %s: the sum of the losses with %s is %.6g, where %.6g is wanted. Look at %s, which "
          "computes "
          "the loss of each target",
          weighted ? "the weights of targets" : "that targets are masked", part.name, part.sum, part.wanted, op);
    }
    return absl::OkStatus();
  };
  if (const absl::Status status = run(); !status.ok()) {
    return {Failed(std::move(evaluation), status), Failed(std::move(parts), status)};
  }
  return {evaluation, parts};
}

}  // namespace shale
