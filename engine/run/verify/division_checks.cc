#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/run/verify/checks.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Runs a variant of the compared job. If it cannot be started, or fails, returns nothing and completes the row.
std::optional<TrialRecord> RunVariant(VerifiedJob& verified, const Job& variant, int steps, VerifyRow& row) {
  const absl::StatusOr<std::unique_ptr<TrialRun>> trial = TrialRun::Start(verified.context, row.check, variant);
  if (!trial.ok()) {
    row = NotRun(std::move(row), trial.status());
    return std::nullopt;
  }
  absl::StatusOr<TrialRecord> record = (*trial)->Run(steps, TrialRun::Keep::kGradientsAndWeights);
  if (record.ok()) return *std::move(record);
  row = Failed(std::move(row), record.status());
  return std::nullopt;
}

double RelativeDistance(double a, double b) {
  if (a == b) return 0;
  const double distance = std::abs(a - b) / std::abs(b);
  return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}

// Compares the loss and the gradients of the first step. `blame` says what may be wrong with a gradient.
VerifyRow CompareFirstStep(VerifyRow row, const TrialRecord& a, const TrialRecord& b, absl::string_view blame) {
  std::string worst;
  const double gradients = LargestDistance(a.gradients, b.gradients, &worst);
  const double loss = RelativeDistance(a.losses[0], b.losses[0]);
  row.difference = std::max(gradients, loss);
  if (row.difference <= row.tolerance) return row;
  row.outcome = VerifyOutcome::kFails;
  row.remark =
      absl::StrFormat("the loss is %.9g against %.9g, and the gradient of %s differs most, by %.2e of its norm. %s",
                      a.losses[0], b.losses[0], worst.empty() ? "no parameter" : worst, gradients, blame);
  return row;
}

// Sets the difference of two runs of the same steps, which must have the same bits, and says where it is.
VerifyRow CompareBits(VerifyRow row, const TrialRecord& a, const TrialRecord& b, absl::string_view blame) {
  std::string where;
  for (size_t step = 0; step < a.losses.size(); ++step) {
    row.difference = std::max(row.difference, RelativeDistance(a.losses[step], b.losses[step]));
    if (a.losses[step] == b.losses[step] || !where.empty()) continue;
    where = absl::StrFormat("the loss of step %d is %.17g against %.17g", step + 1, a.losses[step], b.losses[step]);
  }
  for (const auto& [values, others, what] : {std::tuple(&a.gradients, &b.gradients, "the gradient of the first step"),
                                             {&a.weights, &b.weights, "the weights after the last step"}}) {
    std::string worst;
    const double distance = LargestDistance(*values, *others, &worst);
    row.difference = std::max(row.difference, distance);
    if (distance == 0) continue;
    absl::StrAppend(&where, where.empty() ? "" : "; ",
                    absl::StrFormat("%s of %s differs most, by %.2e of its norm", what, worst, distance));
  }
  if (where.empty()) return row;
  row.outcome = VerifyOutcome::kFails;
  row.remark = absl::StrCat(where, ". ", blame);
  return row;
}

bool RoundsActivations(const Job& job) {
  return job.precision.compute != ComputePrecision::kFloat32 || job.precision.allow_tf32 ||
         job.precision.gradient_shards == GradientShards::kBFloat16 ||
         job.precision.reduce == ReducePrecision::kBFloat16;
}

bool MultipliesInFloat8(const Job& job) { return job.precision.matmuls == MatMulPrecision::kFloat8; }

// Returns the job without fp8. There the scale of a micro-batch follows its largest number, so a larger one rounds
// otherwise, and says nothing about how micro-batches are added up.
Job AsComputed(Job job) {
  job.precision.matmuls = MatMulPrecision::kAsComputed;
  job.precision.fp8_gradients = Float8Gradients::kE5M2;
  job.precision.fp8_scaling = Float8Scaling::kTensorwise;
  return job;
}

std::string NameOf(const ActivationCheckpointingConfig& config) {
  std::string name(ToString(config.preset));
  if (config.every_nth > 1) absl::StrAppend(&name, ", every ", config.every_nth);
  if (config.first_layers + config.last_layers > 0) {
    absl::StrAppend(&name, ", ", config.first_layers, " first, ", config.last_layers, " last");
  }
  if (config.segments == Segments::kSqrt) absl::StrAppend(&name, ", segments SQRT");
  if (config.segment_blocks > 1) absl::StrAppend(&name, ", segments of ", config.segment_blocks);
  if (!config.recompute.empty()) absl::StrAppend(&name, ", ", Plural(std::ssize(config.recompute), "pattern"));
  return name;
}

}  // namespace

VerifyRow NotRun(VerifyRow row, const absl::Status& status) {
  row.outcome = VerifyOutcome::kNotRun;
  row.remark = std::string(status.message());
  return row;
}

VerifyRow Failed(VerifyRow row, const absl::Status& status) {
  row.outcome = VerifyOutcome::kFails;
  row.remark = std::string(status.message());
  return row;
}

absl::StatusOr<TrialRecord> RunCompared(VerifiedJob& verified) {
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<TrialRun> trial,
                         TrialRun::Start(verified.context, "the job without activation checkpointing",
                                         ComparedJob(verified.job, verified.size)));
  return trial->Run(kComparedSteps, TrialRun::Keep::kGradientsAndWeights);
}

std::vector<VerifyRow> CheckDivision(VerifiedJob& verified, const TrialRecord& compared) {
  const SmallSize& size = verified.size;
  const int64_t G = size.global_batch();
  const double tolerance = ReorderedTolerance(verified.targets, RoundsActivations(verified.job));
  Job one_rank = ComparedJob(verified.job, size), one_batch = one_rank, two_ranks = one_rank;
  SetDivision(1, size.micro_batch, one_rank);
  SetDivision(1, G, one_batch);
  SetDivision(2, size.micro_batch, two_ranks);

  VerifyRow batches = {.check = absl::StrCat(G / size.micro_batch, " micro-batches"),
                       .against = absl::StrCat("one batch of ", G),
                       .tolerance = tolerance};
  VerifyRow ranks = {
      .check = absl::StrCat(std::max<int64_t>(2, size.ranks), " ranks"), .against = "one rank", .tolerance = tolerance};
  std::optional<TrialRecord> with_one_rank;
  if (size.ranks > 1) {
    VerifyRow row = {.check = "one rank"};
    with_one_rank = RunVariant(verified, one_rank, /*steps=*/1, row);
    if (!with_one_rank) {
      batches.outcome = ranks.outcome = row.outcome;
      batches.remark = ranks.remark = row.remark;
      return {batches, ranks};
    }
  }
  const TrialRecord& alone = with_one_rank ? *with_one_rank : compared;
  std::optional<TrialRecord> as_computed;
  if (MultipliesInFloat8(one_rank)) as_computed = RunVariant(verified, AsComputed(one_rank), /*steps=*/1, batches);
  const bool divided = as_computed || !MultipliesInFloat8(one_rank);
  const std::optional<TrialRecord> large =
      divided ? RunVariant(verified, AsComputed(one_batch), /*steps=*/1, batches) : std::nullopt;
  if (large) {
    batches = CompareFirstStep(std::move(batches), as_computed ? *as_computed : alone, *large,
                               "What a sequence computes depends on the sequences beside it, or micro-batches are not "
                               "added up: look at the ops that read this parameter and at those after them, for one "
                               "that mixes the rows of a micro-batch");
  }
  constexpr char kBlame[] =
      "Ranks do not see what one rank sees: look at the communicators of the backend, and at ops that keep something "
      "from one call to the next";
  if (size.ranks > 1) {
    ranks = CompareFirstStep(std::move(ranks), compared, alone, kBlame);
  } else if (const std::optional<TrialRecord> two = RunVariant(verified, two_ranks, /*steps=*/1, ranks)) {
    ranks = CompareFirstStep(std::move(ranks), *two, alone, kBlame);
  }
  return {batches, ranks};
}

std::vector<Job> CheckpointingVariants(const VerifiedJob& verified) {
  using enum CheckpointingPreset;
  const Job compared = ComparedJob(verified.job, verified.size);
  std::vector<ActivationCheckpointingConfig> configs;
  for (const CheckpointingPreset preset : {kCheap, kAttention, kFeedForward, kSublayers, kBlock}) {
    configs.push_back({.preset = preset});
  }
  const ActivationCheckpointingConfig& own = verified.job.activation_checkpointing;
  const bool listed = std::find(configs.begin(), configs.end(), own) != configs.end();
  if (!listed && own != ActivationCheckpointingConfig()) configs.push_back(own);
  std::vector<Job> variants;
  for (const ActivationCheckpointingConfig& config : configs) {
    variants.push_back(compared);
    variants.back().activation_checkpointing = config;
  }
  return variants;
}

VerifyRow CheckCheckpointing(VerifiedJob& verified, const Job& variant, const TrialRecord& compared) {
  VerifyRow row = {.check = absl::StrCat("recompute ", NameOf(variant.activation_checkpointing)),
                   .against = "no activation checkpointing"};
  const std::optional<TrialRecord> record = RunVariant(verified, variant, kComparedSteps, row);
  if (!record) return row;
  return CompareBits(std::move(row), *record, compared,
                     "An op that runs again does not compute the same bits: look for one, at or before this parameter, "
                     "that depends on more than its operands");
}

VerifyRow CheckResume(VerifiedJob& verified) {
  constexpr int kBefore = 2, kAfter = 2;
  VerifyRow row = {.check = "save and resume", .against = "going on"};
  const Job job = SmallJob(verified.job, verified.size);
  const auto run = [&]() -> absl::StatusOr<VerifyRow> {
    SHALE_ASSIGN_OR_RETURN(
        std::unique_ptr<TrialRun> trial,
        TrialRun::Start(verified.context, "the job's own settings", job,
                        {.checkpoint_folder = absl::StrCat(verified.temporary_folder, "/checkpoints")}));
    SHALE_RETURN_IF_ERROR(trial->Run(kBefore, TrialRun::Keep::kLosses).status());
    SHALE_ASSIGN_OR_RETURN(const std::string saved, trial->trainer().SaveCheckpoint());
    SHALE_ASSIGN_OR_RETURN(const TrialRecord went_on, trial->Run(kAfter, TrialRun::Keep::kWeights));
    trial.reset();
    SHALE_ASSIGN_OR_RETURN(trial, TrialRun::Start(verified.context, "resumed", job,
                                                  {.resume = {.from = ResumeFrom::kPath, .path = saved}}));
    SHALE_ASSIGN_OR_RETURN(const TrialRecord resumed, trial->Run(kAfter, TrialRun::Keep::kWeights));
    return CompareBits(row, resumed, went_on,
                       "Something that a step depends on is in no checkpoint: look for an op that keeps something from "
                       "one call to the next");
  };
  absl::StatusOr<VerifyRow> result = run();
  return result.ok() ? *std::move(result) : Failed(std::move(row), result.status());
}

VerifyRow CheckPeaks(const std::vector<PeakOfTrial>& peaks) {
  VerifyRow row = {.check = "measured peak", .against = "planned peak"};
  for (const PeakOfTrial& peak : peaks) {
    const int64_t bytes = std::abs(peak.measured_bytes - peak.planned_bytes);
    if (static_cast<double>(bytes) <= row.difference) continue;
    row.difference = static_cast<double>(bytes);
    row.outcome = VerifyOutcome::kFails;
    row.remark = absl::StrCat("a rank used ", WithCommas(peak.measured_bytes), " bytes of its arena with ", peak.trial,
                              ", and ", WithCommas(peak.planned_bytes),
                              " are planned: an op of the backend uses memory that it does not declare "
                              "(Ops::ScratchBytes)");
  }
  if (row.outcome == VerifyOutcome::kHolds)
    row.remark = absl::StrCat("in bytes, in ", Plural(std::ssize(peaks), "run"));
  return row;
}

}  // namespace shale
