#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/plan/config/learning_rate.h"
#include "engine/plan/planner/fit.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/report/explain_sections.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

std::string FormatRate(double rate) { return absl::StrFormat("%.3g", rate); }

// Returns how the peak of the learning rate follows from the job's own.
std::string DescribeScaling(const Job& job) {
  const OptimizerConfig& o = job.optimizer;
  const std::string ratio = absl::StrCat(WithCommas(job.batch.global_batch), " / ", WithCommas(o.base_batch));
  switch (o.scaling) {
    case LearningRateScaling::kConstant: return "it does not depend on the global batch (optimizer.scaling CONSTANT)";
    case LearningRateScaling::kLinear:
      return absl::StrCat(FormatRate(o.learning_rate), " x ", ratio, ", global batch over base_batch (LINEAR)");
    case LearningRateScaling::kSquareRoot:
      return absl::StrCat(FormatRate(o.learning_rate), " x sqrt(", ratio,
                          "), global batch over base_batch (SQUARE_ROOT)");
  }
  return "";
}

// Returns the samples or tokens that the warm-up's length in steps follows from. Empty if the job gives it in steps.
std::string DescribeWarmup(const Job& job) {
  const LearningRateConfig& schedule = job.lr_schedule;
  if (schedule.warmup_samples > 0) {
    return absl::StrCat(", ", WithCommas(schedule.warmup_samples), " sequences at ", WithCommas(job.batch.global_batch),
                        " a step");
  }
  if (schedule.warmup_tokens > 0) {
    return absl::StrCat(", ", WithCommas(schedule.warmup_tokens), " tokens at ",
                        WithCommas(job.batch.global_batch * job.batch.sequence_length), " a step");
  }
  return "";
}

}  // namespace

SectionText ExplainOnePiece(const Explained& x) {
  const Job& job = x.job;
  const int64_t of_rank = CeilDivide(job.batch.global_batch, job.sharding.ranks);
  if (of_rank == 1) return "";
  const int64_t other = x.plan.options.micro_batches > 1 ? of_rank : 1;
  const auto row = [&](int64_t micro_batch) -> ComparedRow {
    return {.name = {absl::StrCat("K = ", WithCommas(CeilDivide(of_rank, micro_batch))), WithCommas(micro_batch)},
            .overrides = {{"batch.micro_batch", absl::StrCat(micro_batch)}},
            .is_own = micro_batch == job.batch.micro_batch};
  };
  const std::vector<ComparedRow> rows = {row(job.batch.micro_batch), row(other)};
  return Section("What the same global batch needs in one piece",
                 absl::StrCat("A rank has ", Plural(of_rank, "sequence"),
                              " in a step, in one micro-batch or in K of them. Activations are those "
                              "that wait for backward, and the inputs of units with their gradients, "
                              "at the moment when they are most."),
                 CompareTable(x, {"", "micro_batch"}, rows, {Activations(), Needs(), AgainstThisJob(x)}));
}

SectionText ExplainHeadroom(const Explained& x) {
  const Budget& budget = x.plan.budget;
  const auto section = [](absl::string_view text) { return Section("Which micro-batch would fit", text); };
  if (budget.bytes == kNoBudget) return section("There is no budget; memory.budget_bytes sets one.");
  const absl::string_view accumulation = ToString(x.plan.options.accumulation);
  const absl::StatusOr<Fit> fit =
      FindFit("batch.micro_batch", x.job, {}, x.drafter.machine(), FitEffort::kQuick, x.limits);
  if (absl::IsResourceExhausted(fit.status())) {
    return section(absl::StrCat("With accumulation ", accumulation, ", ", fit.status().message(), "."));
  }
  SHALE_RETURN_IF_ERROR(fit.status());
  const int64_t own = x.job.batch.micro_batch;
  std::string text =
      absl::StrCat(FitText(*fit), ". This job's is ", fit->value == own ? "the same" : WithCommas(own), ".");
  if (fit->next && x.plan.options.accumulation == Accumulation::kLayered) {
    absl::StrAppend(&text,
                    " With LAYERED a much larger one may fit again, because it makes fewer micro-batches; plan "
                    "--fit=batch.micro_batch tries these too.");
  }
  return section(text);
}

SectionText ExplainLearningRate(const Explained& x) {
  const Job& job = x.job;
  // Neither peak nor warm-up depends on the length of the run, which only the data tells if it is given in epochs.
  LearningRateOptions options = LearningRateOptionsFor(job, std::max<int64_t>(job.lr_schedule.steps, 1));
  options.shape = LearningRateShape::kConstant;
  SHALE_ASSIGN_OR_RETURN(const LearningRateSchedule schedule, LearningRateSchedule::Create(options));
  return Section("What the batch makes of the learning rate",
                 absl::StrCat("The peak is ", FormatRate(schedule.peak()), ": ", DescribeScaling(job),
                              ". Warm-up takes ", Plural(schedule.warmup_steps(), "step"), DescribeWarmup(job), "."));
}

SectionText ExplainMix(const Explained& x) {
  const Job& job = x.job;
  if (job.data.mix.empty()) return "";
  int64_t rest = kMixWindow;
  std::string others;
  for (const MixedData& mixed : job.data.mix) {
    rest -= mixed.share;
    absl::StrAppend(&others, ", ", mixed.share, " of ", mixed.path);
  }
  return Section("Where samples come from",
                 absl::StrCat("Of any 1,000 samples in a row, ", rest, " are of ", job.data.path, others,
                              " (data.mix), evenly spread. Each source has epochs of its own, and a "
                              "mixture takes no memory."));
}

SectionText ExplainPacking(const Explained& x) {
  const Job& job = x.job;
  if (job.data.packing == Packing::kCut) return "";
  const bool packs = job.data.packing == Packing::kPack;
  const int64_t bytes = job.batch.micro_batch * job.batch.sequence_length * static_cast<int64_t>(sizeof(int32_t));
  return Section(
      "What a sequence holds",
      absl::StrCat(
          packs ? absl::StrCat("Several documents (data.packing PACK), packed by best fit. Attention never crosses a "
                               "document and skips the tiles between documents, and positions begin anew with each. "
                               "All of this comes from one number for each token, ",
                               FormatBytes(bytes),
                               " for a micro-batch, which is copied to the device where it is read. On a GPU Shale's "
                               "own kernels compute this attention, because cuDNN's do not.")
                : "One document (data.packing PAD), and padding that is computed but does not count. PACK computes "
                  "less for the same loss.",
          " Of a document with more targets than a sequence has positions, ",
          job.data.long_documents == LongDocuments::kSplit ? "every part is kept, as a document of its own"
          : job.data.long_documents == LongDocuments::kTruncate
              ? "only the first part is kept (data.long_documents TRUNCATE)"
              : "nothing is kept (data.long_documents DROP)",
          ". The loss is the sum over the targets of documents, divided by their number in the entire global batch, so "
          "neither the ranks nor the micro-batches change the weight of a token. ",
          packs
              ? "The plan counts FLOPs as if every sequence were one document, because it reads no data; a run counts "
                "the documents that it reads."
              : "FLOPs are counted as if no sequence had padding."));
}

SectionText ExplainTargetWeights(const Explained& x) {
  const Job& job = x.job;
  if (job.data.target_weights == TargetWeights::kNone) return "";
  const bool over_tokens = job.data.target_weights == TargetWeights::kOverTokens;
  const int64_t targets = job.batch.micro_batch * job.batch.sequence_length;
  return Section("What the weights of targets do",
                 absl::StrCat("The loss of a step is the sum of weight x loss, divided by ",
                              over_tokens ? "the number of targets (data.target_weights OVER_TOKENS)"
                                          : "the sum of |weight| (data.target_weights OVER_WEIGHTS)",
                              " of the entire global batch, so that neither the ranks nor the "
                              "micro-batches change it. A step whose weights "
                              "are all 0 updates nothing. The weights of a micro-batch take ",
                              FormatBytes(targets * static_cast<int64_t>(sizeof(float))), "."));
}

}  // namespace shale
