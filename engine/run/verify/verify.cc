#include "engine/api/verify.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/compile/graph/graph.h"
#include "engine/run/train/job_data.h"
#include "engine/run/verify/checks.h"
#include "engine/run/verify/samples.h"
#include "engine/run/verify/small_job.h"
#include "engine/run/verify/trial_run.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"

namespace shale {
namespace {

// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryFolder>> Make(std::string parent) {
    std::error_code error;
    if (parent.empty()) parent = std::filesystem::temp_directory_path(error).string();
    std::string path = absl::StrCat(parent, "/shale_verify_XXXXXX");
    if (error || mkdtemp(path.data()) == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot make a folder in ", parent,
                       " for the check of saving; set VerifyOptions.temporary_folder, or TMPDIR"));
    }
    return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(std::move(path)));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

class Verification {
 public:
  Verification(const Job& job, const VerifyOptions& options) : options_(options), size_(FirstSize(job)) {
    verified_.job = job;
    verified_.context.backend = options.backend;
    verified_.context.cancelled = options.cancelled;
    verified_.context.machine = options.machine;
  }

  absl::StatusOr<VerifyReport> Run();

 private:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  // Reports a check. Returns Cancelled in its place if the verification was cancelled, because the check may then have
  // ended for that reason.
  absl::Status Add(VerifyRow row) {
    SHALE_RETURN_IF_ERROR(verified_.context.CheckCancelled());
    if (options_.on_row) options_.on_row(row);
    report_.rows.push_back(std::move(row));
    return absl::OkStatus();
  }
  // Plans a job, unless the verification is cancelled.
  absl::StatusOr<ResolvedJob> Plan(const Job& job, const DataFacts& facts) const {
    return ResolveJob(job, facts, options_.backend->machine(), {.cancelled = options_.cancelled});
  }
  // Reads the samples for trials of size_, and compares them with what the source gives when it is read again.
  absl::Status Record();
  // Plans the jobs that need most memory of one rank, and of all ranks together. Returns ResourceExhausted if one does
  // not fit the budget of the job or, with a budget of 0, that of the machine.
  absl::Status CheckFits(int64_t budget_bytes) const;
  // Runs the job that the others are compared with, at a size.
  absl::StatusOr<TrialRecord> RunAt(const SmallSize& size);
  // Finds a size that fits this machine and its time, and runs that job.
  absl::StatusOr<TrialRecord> ShrinkAndRun();

  const VerifyOptions& options_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  SmallSize size_;
  VerifiedJob verified_;
  VerifyRow data_row_;
  int64_t recorded_length_ = 0;  // The sequence length of the recorded samples; 0: nothing is recorded.
  VerifyReport report_;
};

absl::Status Verification::Record() {
  if (recorded_length_ == size_.sequence_length) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(verified_.context.CheckCancelled());
  const Job gradient_job = GradientJob(verified_.job, size_);
  Job job = SmallJob(verified_.job, size_);
  job.data = verified_.job.data;
  job.telemetry.run_folder = verified_.job.telemetry.run_folder;  // Beside which the tokens of text are kept.
  SetDivision(1, 1, job);
  job.batch.global_batch = std::max(size_.global_batch(), gradient_job.batch.global_batch);
  job.memory.budget_bytes = int64_t{1} << 60;  // It is planned for what its graph needs of data, and never runs.
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<JobData> data,
                         JobData::Open(job, /*tokenizer_folder=*/"", {.training = options_.data}));
  SHALE_ASSIGN_OR_RETURN(const ResolvedJob resolved, Plan(job, data->facts()));
  const DataNeeds needs = NeedsOf(resolved.plan.train.graph);
  SHALE_RETURN_IF_ERROR(data->FitTo(needs, job.batch.micro_batch));
  SHALE_RETURN_IF_ERROR(data->Start(0, nullptr));
  const BatchLoader& loader = data->training();
  RecordedSamples& samples = verified_.context.samples;
  SHALE_ASSIGN_OR_RETURN(samples.samples, ReadSamples(loader, ReadOrder::kForward));
  samples.description = loader.source().description();
  samples.description.name = "recorded samples";
  samples.description.samples = samples.size();
  samples.description.vocabulary = std::max(samples.description.vocabulary, data->facts().vocabulary);
  samples.last_target_only = needs.last_target_only;
  recorded_length_ = size_.sequence_length;

  data_row_ = {.check = "data", .against = "read again, backwards"};
  if (loader.source().sequential()) {
    data_row_.outcome = VerifyOutcome::kNotRun;
    data_row_.remark = "the source can only be read once, in order";
    return absl::OkStatus();
  }
  SHALE_RETURN_IF_ERROR(verified_.context.CheckCancelled());
  const absl::StatusOr<std::vector<RecordedSample>> again = ReadSamples(loader, ReadOrder::kBackward);
  const std::string difference =
      again.ok() ? FirstDifference(samples.samples, *again) : std::string(again.status().message());
  if (difference.empty()) return absl::OkStatus();
  data_row_.outcome = VerifyOutcome::kFails;
  data_row_.difference = 1;
  data_row_.remark =
      absl::StrCat("the source is not a function of the position: ", difference,
                   ". A resumed run would train on other samples. Let what is read depend on nothing but the number of "
                   "the sample, or give the data as a stream, whose state checkpoints record");
  return absl::OkStatus();
}

absl::Status Verification::CheckFits(int64_t budget_bytes) const {
  Job compared = ComparedJob(verified_.job, size_);
  compared.memory.budget_bytes = budget_bytes;
  Job one_batch = compared;
  SetDivision(1, size_.global_batch(), one_batch);
  const DataFacts facts = {.vocabulary = verified_.context.samples.description.vocabulary};
  SHALE_RETURN_IF_ERROR(Plan(compared, facts).status());
  return Plan(one_batch, facts).status();
}

absl::StatusOr<TrialRecord> Verification::RunAt(const SmallSize& size) {
  size_ = size;
  SHALE_RETURN_IF_ERROR(Record());
  verified_.size = size_;
  verified_.targets = CountTargets(verified_.context.samples, size_.global_batch());
  verified_.context.peaks.clear();
  return RunCompared(verified_);
}

absl::StatusOr<TrialRecord> Verification::ShrinkAndRun() {
  constexpr double kSteps = 25;         // The trials' steps together, about, at the size of the compared job.
  constexpr double kShareOfTime = 0.5;  // The gradients take the rest.
  const double longest_step = kShareOfTime * options_.seconds / kSteps;
  const bool length_may_change = !verified_.job.data.path.empty();
  SHALE_RETURN_IF_ERROR(Record());  // Of the largest size, since some sources can be read only once.
  // A step of the smallest size says how long others take, about. It may not fit; then that is reported below.
  const SmallSize first = size_, smallest = SmallestSize(length_may_change, first);
  absl::StatusOr<TrialRecord> compared = RunAt(smallest);
  SHALE_RETURN_IF_ERROR(verified_.context.CheckCancelled());
  const double of_position = compared.ok() ? compared->last_seconds / smallest.positions() : 0;
  size_ = first;
  while (of_position * size_.positions() > longest_step && Shrink(length_may_change, size_)) {
  }
  while (true) {
    SHALE_RETURN_IF_ERROR(Record());
    const absl::Status fits_budget = CheckFits(verified_.job.memory.budget_bytes);
    const bool too_large = absl::IsResourceExhausted(fits_budget) || absl::IsResourceExhausted(CheckFits(0));
    if (too_large && Shrink(length_may_change, size_)) continue;
    SHALE_RETURN_IF_ERROR(fits_budget);
    if (size_ == smallest) return RunAt(smallest);
    compared = RunAt(size_);
    const bool ran_out = absl::IsResourceExhausted(compared.status());
    if (!ran_out) SHALE_RETURN_IF_ERROR(compared.status());
    if (!ran_out && compared->last_seconds <= longest_step) return compared;
    if (!Shrink(length_may_change, size_)) return compared;
  }
}

absl::StatusOr<VerifyReport> Verification::Run() {
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<TemporaryFolder> folder,
                         TemporaryFolder::Make(options_.temporary_folder));
  verified_.temporary_folder = folder->path();
  SHALE_ASSIGN_OR_RETURN(const TrialRecord compared, ShrinkAndRun());
  report_.shrunk = WhatIsSmaller(verified_.job, verified_.size);
  if (compared.predicted_seconds > 0) {
    report_.time = absl::StrCat("time: a step of the small job took ", FormatSeconds(compared.last_seconds),
                                "; predicted for this machine: ", FormatSeconds(compared.predicted_seconds));
  }
  SHALE_RETURN_IF_ERROR(Add(data_row_));
  for (VerifyRow& row : CheckDivision(verified_, compared)) SHALE_RETURN_IF_ERROR(Add(std::move(row)));
  for (const Job& variant : CheckpointingVariants(verified_)) {
    SHALE_RETURN_IF_ERROR(Add(CheckCheckpointing(verified_, variant, compared)));
  }
  SHALE_RETURN_IF_ERROR(Add(CheckResume(verified_)));
  for (VerifyRow& row : CheckLoss(verified_, compared)) SHALE_RETURN_IF_ERROR(Add(std::move(row)));
  const double for_gradients = std::max(options_.seconds - seconds(), options_.seconds / 3);
  SHALE_RETURN_IF_ERROR(Add(CheckGradients(verified_, for_gradients)));
  SHALE_RETURN_IF_ERROR(Add(CheckPeaks(verified_.context.peaks)));
  report_.seconds = seconds();
  return std::move(report_);
}

}  // namespace

absl::StatusOr<VerifyReport> Verify(const Job& job, const VerifyOptions& options) {
  if (options.backend == nullptr) return absl::InvalidArgumentError("VerifyOptions.backend is missing");
  Job own = job;
  if (options.model) SHALE_RETURN_IF_ERROR(SetModel(*options.model, own));
  own.runtime.search.clear();  // The job is verified as it is written.
  SHALE_RETURN_IF_ERROR(ValidateJob(own));
  return Verification(own, options).Run();
}

}  // namespace shale
