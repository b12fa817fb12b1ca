#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "engine/run/verify/checks.h"
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

// Compares sums of losses in evaluations of one trial, which it borrows.
class LossComparison {
 public:
  LossComparison(VerifiedJob& verified, TrialRun& trial)
      : samples_(verified.context.samples),
        kind_(verified.job.data.target_weights),
        global_batch_(verified.size.global_batch()),
        trial_(trial),
        op_(LossOpOf(trial.trainer().plan().train.graph)) {}

  // Evaluates all samples, and compares with the loss of the first step.
  absl::Status WithStep(const TrialRecord& compared, VerifyRow* row) {
    SHALE_ASSIGN_OR_RETURN(all_, SumAfter({}));
    const double step = compared.losses[0] * Divisor(samples_, global_batch_, kind_, {});
    size_ = std::abs(all_);
    if (weighted()) {
      SHALE_ASSIGN_OR_RETURN(size_, SumAfter([](int64_t, const SampleParts& sample) {
                               for (float& w : sample.weights) w = std::abs(w);
                             }));
      size_ = std::max(std::abs(size_), std::abs(all_));
    }
    row->difference = Relative(all_, step);
    if (row->difference <= row->tolerance) return absl::OkStatus();
    row->outcome = VerifyOutcome::kFails;
    row->remark = absl::StrFormat(
        "the sum of the losses is %.9g in an evaluation, and %.9g in the step on the same samples: look at %s, which "
        "computes no gradient in an evaluation, and at whether the model's function builds the same for both",
        all_, step, op_);
    return absl::OkStatus();
  }

  // Evaluates with other weights or masks, and compares with the loss of all samples. REQUIRES: WithStep was called.
  absl::Status OfParts(VerifyRow* row) {
    if (!weighted() && samples_.description.target_values > 0) {
      row->outcome = VerifyOutcome::kNotRun;
      row->remark = "the targets are values and have no weights (data.target_weights), so none can be taken out";
      return absl::OkStatus();
    }
    SHALE_ASSIGN_OR_RETURN(const double even, SumAfter(Half(weighted(), 0)));
    SHALE_ASSIGN_OR_RETURN(const double odd, SumAfter(Half(weighted(), 1)));
    std::vector<LossPart> found = {{weighted() ? "two halves, each with the weights of the other set to 0,"
                                               : "two halves, each with the other masked,",
                                    even + odd, all_}};
    if (weighted()) {
      SHALE_ASSIGN_OR_RETURN(const double twice, SumAfter(Times(2)));
      SHALE_ASSIGN_OR_RETURN(const double negated, SumAfter(Times(-1)));
      found.push_back({"doubled weights", twice, 2 * all_});
      found.push_back({"negated weights", negated, -all_});
    }
    for (const LossPart& part : found) {
      const double difference = Relative(part.sum, part.wanted);
      row->difference = std::max(row->difference, difference);
      if (difference <= row->tolerance || row->outcome == VerifyOutcome::kFails) continue;
      row->outcome = VerifyOutcome::kFails;
      row->remark = absl::StrFormat(
          "the loss forgets %s: the sum of the losses with %s is %.6g, where %.6g is wanted. Look at %s, which "
          "computes the loss of each target",
          weighted() ? "the weights of targets" : "that targets are masked", part.name, part.sum, part.wanted, op_);
    }
    return absl::OkStatus();
  }

 private:
  bool weighted() const { return kind_ != TargetWeights::kNone; }

  // Returns the sum of the losses after an edit.
  absl::StatusOr<double> SumAfter(const RecordedSource::Edit& edit) {
    trial_.evaluated().SetEdit(edit);
    SHALE_ASSIGN_OR_RETURN(const double loss, trial_.Evaluate());
    return loss * Divisor(samples_, global_batch_, kind_, edit);
  }

  double Relative(double a, double b) const { return a == b ? 0 : std::abs(a - b) / std::max(size_, 1e-300); }

  const RecordedSamples& samples_;
  const TargetWeights kind_;
  const int64_t global_batch_;
  TrialRun& trial_;
  const std::string op_;  // That computes the loss.
  double all_ = 0;        // The sum of the losses of all samples.
  double size_ = 0;       // What differences are relative to.
};

}  // namespace

int64_t CountTargets(const RecordedSamples& samples, int64_t count) {
  return static_cast<int64_t>(Divisor(samples, count, TargetWeights::kNone, {}));
}

std::vector<VerifyRow> CheckLoss(VerifiedJob& verified, const TrialRecord& compared) {
  const bool weighted = verified.job.data.target_weights != TargetWeights::kNone;
  // Sums in another order. What a target computes is the same, so its loss has the same bits.
  const double tolerance = ReorderedTolerance(verified.targets, /*rounded=*/false);
  VerifyRow evaluation = {.check = "evaluation", .against = "the step's loss", .tolerance = tolerance};
  VerifyRow parts = {.check = weighted ? "target weights" : "masked targets",
                     .against = "the loss of all targets",
                     .tolerance = tolerance};
  const auto run = [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<TrialRun> trial,
                           TrialRun::Start(verified.context, "evaluation", ComparedJob(verified.job, verified.size)));
    LossComparison comparison(verified, *trial);
    SHALE_RETURN_IF_ERROR(comparison.WithStep(compared, &evaluation));
    return comparison.OfParts(&parts);
  };
  if (const absl::Status status = run(); !status.ok()) {
    return {Failed(std::move(evaluation), status), Failed(std::move(parts), status)};
  }
  return {evaluation, parts};
}

}  // namespace shale
