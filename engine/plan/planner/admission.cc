#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/plan/config/job_files.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/options.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::string_view NameOf(DeviceType device) { return device == DeviceType::kCpu ? "CPU" : "CUDA"; }

WorkLimits LimitsOf(const AdmissionOptions& options) {
  WorkLimits limits{.cancelled = options.cancelled};
  if (options.time_limit < absl::Hours(24 * 365)) {
    limits.deadline = WorkLimits::Clock::now() + absl::ToChronoNanoseconds(options.time_limit);
  }
  const double for_instructions = static_cast<double>(options.memory_bytes - kPlanningBytes);
  limits.instructions =
      std::min(limits.instructions, std::max(0.0, for_instructions / double{kPlanningBytesPerInstruction}));
  return limits;
}

// Returns the error with which planning ended, with the limit that it reached.
absl::Status WithLimit(const absl::Status& status, const AdmissionOptions& options) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(absl::StrCat("planning the job reached its time limit of ",
                                                  absl::FormatDuration(options.time_limit),
                                                  "; give it more time, or make the model smaller"));
}

absl::Status CheckLength(int64_t bytes, const AdmissionOptions& options) {
  if (bytes <= options.job_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the job has ", bytes, " bytes, and at most ", options.job_bytes,
                                                   " are read; a job spec is a few hundred bytes"));
}

absl::Status CheckWork(const Job& job, const AdmissionOptions& options, const WorkLimits& limits) {
  const double instructions = EstimatedInstructions(job);
  if (instructions <= limits.instructions) return absl::OkStatus();
  const double bytes = double{kPlanningBytes} + double{kPlanningBytesPerInstruction} * instructions;
  return absl::ResourceExhaustedError(
      absl::StrCat("a step of the job has about ", instructions, " instructions, and planning it could take ",
                   FormatBytes(static_cast<int64_t>(std::min(bytes, 0x1p60))), " of memory, more than the limit of ",
                   FormatBytes(options.memory_bytes), "; make memory.loss_chunk_tokens larger or layers fewer"));
}

// Splits an error that begins with the path of a field and a colon.
JobError ErrorOf(absl::string_view message) {
  const size_t colon = message.find(": ");
  const absl::string_view path = message.substr(0, colon);
  const auto in_path = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '[' || c == ']'; };
  if (colon == absl::string_view::npos || path.find('.') == absl::string_view::npos ||
      !std::all_of(path.begin(), path.end(), in_path)) {
    return {.source = "job", .message = std::string(message)};
  }
  return {.source = "job", .path = std::string(path), .message = std::string(message.substr(colon + 2))};
}

Admission Invalid(const absl::Status& status, std::vector<JobError> errors = {}) {
  return Refused(status, std::move(errors), std::nullopt);
}

Admission DoesNotFit(std::string text, std::optional<Refusal> refusal = std::nullopt) {
  return {.verdict = Admission::Verdict::kDoesNotFit, .text = std::move(text), .refusal = std::move(refusal)};
}

// Plans one job.
class Admitter {
 public:
  // `job_with` parses the job with other settings. Empty: nobody can.
  Admitter(const AdmissionMachine& machine, const AdmissionOptions& options, const WorkLimits& limits,
           const JobWith& job_with)
      : machine_(machine), options_(options), limits_(limits), job_with_(job_with) {
    SHALE_CHECK(machine.planning != nullptr) << "AdmissionMachine::planning is not set";
  }

  absl::StatusOr<Admission> Run(Job job) {
    const absl::StatusOr<DataFacts> data = DataFactsWithoutReading(job, options_.data);
    if (!data.ok()) return Invalid(data.status());
    ApplyDataFacts(*data, job);
    std::vector<JobError> errors;
    if (const absl::Status status = ValidateJob(job, &errors); !status.ok()) return Invalid(status, std::move(errors));
    if (const absl::Status status = CheckSearchedFields(job); !status.ok()) return Invalid(status);
    SHALE_RETURN_IF_ERROR(CheckWork(job, options_, limits_));
    if (job.runtime.device != machine_.device) {
      return DoesNotFit(absl::StrCat("runtime.device is ", NameOf(job.runtime.device), ", and the machine is for ",
                                     NameOf(machine_.device)));
    }
    if (job.sharding.ranks > machine_.most_ranks) return WithFewerRanks(std::move(job), *data);
    return Plan(std::move(job), *data);
  }

 private:
  // Leaves out budgets that the machine does not have, so that the default applies, which is what it has. Says so in
  // `remarks`.
  void LimitBudgets(Job& job, std::vector<std::string>& remarks) const {
    const auto limit = [&](absl::string_view field, int64_t has, int64_t& wanted) {
      if (wanted <= has) return;
      remarks.push_back(
          absl::StrCat(field, " is ", FormatBytes(wanted), ", and the machine has ", FormatBytes(has), " for a rank"));
      wanted = 0;
    };
    limit("memory.budget_bytes", machine_.budget_bytes, job.memory.budget_bytes);
    limit("memory.host_budget_bytes", machine_.host_budget_bytes, job.memory.host_budget_bytes);
  }

  // `changed` is what differs from the job as it was written.
  absl::StatusOr<Admission> Plan(Job job, const DataFacts& data, const std::vector<Override>& changed = {}) {
    std::vector<std::string> remarks = SettingRemarks(job);
    LimitBudgets(job, remarks);
    const JobWith job_with = [&](const std::vector<Override>& overrides) -> absl::StatusOr<Job> {
      std::vector<Override> all = changed;
      all.insert(all.end(), overrides.begin(), overrides.end());
      SHALE_ASSIGN_OR_RETURN(Job with, job_with_(all));
      std::vector<std::string> said_before;
      LimitBudgets(with, said_before);
      return with;
    };
    absl::StatusOr<Machine> machine = machine_.planning(job, machine_.hardware_threads);
    if (absl::IsInvalidArgument(machine.status())) return Invalid(machine.status());
    if (!machine.ok()) return machine.status();
    machine->most_ranks = machine_.most_ranks;
    machine->default_budget = [this](int64_t) { return MachineBudget(); };

    Refusal refusal;
    absl::StatusOr<ResolvedJob> resolved =
        ResolveJob(std::move(job), data, *machine, limits_, &refusal, job_with_ ? job_with : JobWith());
    const absl::Status status = resolved.status();
    if (!status.ok() && !absl::IsResourceExhausted(status) && !absl::IsInvalidArgument(status)) {
      return WithLimit(status, options_);
    }
    Admission admission = status.ok() ? Admitted(*std::move(resolved)) : Refused(status, {}, std::move(refusal));
    admission.remarks = std::move(remarks);
    return admission;
  }

  // Refuses a job that has more ranks than the machine has room for. If it fits with as many as there is room for, that
  // is the way out.
  absl::StatusOr<Admission> WithFewerRanks(Job job, const DataFacts& data) {
    std::string text = absl::StrCat("sharding.ranks is ", job.sharding.ranks, ", and the machine has room for ",
                                    machine_.most_ranks, " ranks");
    Refusal refusal{.budget = MachineBudget()};
    job.sharding.ranks = machine_.most_ranks;
    const std::vector<Override> ranks = {{"sharding.ranks", absl::StrCat(machine_.most_ranks)}};
    SHALE_ASSIGN_OR_RETURN(const Admission fewer, Plan(std::move(job), data, ranks));
    if (fewer.verdict == Admission::Verdict::kFits) {
      Variant way = fewer.resolved->plan.chosen();
      way.overrides = ranks;
      refusal.ways_out.push_back(std::move(way));
      absl::StrAppend(&text, "; fits with sharding.ranks=", machine_.most_ranks);
    }
    return DoesNotFit(std::move(text), std::move(refusal));
  }

  Budget MachineBudget() const {
    const auto origin = [](int64_t bytes) { return bytes == kNoBudget ? "" : "what the machine has for a rank"; };
    return {.bytes = machine_.budget_bytes,
            .origin = origin(machine_.budget_bytes),
            .host_bytes = machine_.host_budget_bytes,
            .host_origin = origin(machine_.host_budget_bytes),
            .firm = true};
  }

  const AdmissionMachine& machine_;
  const AdmissionOptions& options_;
  const WorkLimits& limits_;
  const JobWith& job_with_;
};

}  // namespace

Admission Admitted(ResolvedJob resolved) {
  Admission admission{.verdict = Admission::Verdict::kFits, .text = AdmittedText(resolved.plan)};
  admission.resolved = std::move(resolved);
  return admission;
}

Admission Refused(const absl::Status& status, std::vector<JobError> errors, std::optional<Refusal> refusal) {
  if (absl::IsResourceExhausted(status)) {
    if (refusal && refusal->cost.arena_bytes == 0) refusal.reset();  // The job was not planned.
    return DoesNotFit(std::string(status.message()), std::move(refusal));
  }
  SHALE_CHECK(absl::IsInvalidArgument(status)) << status;
  if (errors.empty()) errors.push_back(ErrorOf(status.message()));
  return {.verdict = Admission::Verdict::kInvalid, .text = std::string(status.message()), .errors = std::move(errors)};
}

Admission PlannedThoughRefused(Refusal refusal, ResolvedJob resolved) {
  std::string text = RefusalText(refusal);
  Admission admission = DoesNotFit(std::move(text), std::move(refusal));
  admission.resolved = std::move(resolved);
  return admission;
}

absl::StatusOr<Admission> Admit(absl::string_view job, const AdmissionMachine& machine, const AdmissionOptions& options,
                                const std::vector<std::string>& overrides) {
  const WorkLimits limits = LimitsOf(options);
  int64_t bytes = std::ssize(job);
  for (const std::string& override : overrides) bytes += std::ssize(override);
  SHALE_RETURN_IF_ERROR(CheckLength(bytes, options));
  std::vector<JobError> errors;
  absl::StatusOr<Job> parsed = ParseForeignJob(job, "job", overrides, &errors);
  if (!parsed.ok()) return Invalid(parsed.status(), std::move(errors));
  const JobWith job_with = [&](const std::vector<Override>& settings) {
    std::vector<std::string> all = overrides;
    for (const Override& setting : settings) all.push_back(setting.text());
    return ParseForeignJob(job, "job", all);
  };
  return Admitter(machine, options, limits, job_with).Run(*std::move(parsed));
}

absl::StatusOr<Admission> Admit(const Job& job, const AdmissionMachine& machine, const AdmissionOptions& options) {
  const WorkLimits limits = LimitsOf(options);
  SHALE_RETURN_IF_ERROR(CheckLength(std::ssize(ResolvedJobText(job)), options));
  const JobWith nobody;
  return Admitter(machine, options, limits, nobody).Run(job);
}

}  // namespace shale
