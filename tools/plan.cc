// plan: prints what a job would need and how long its steps would take, without running it and without its data.
#include "engine/api/plan.h"

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/plan_text.h"
#include "engine/compile/program/program.h"
#include "engine/compile/program/work_limits.h"
#include "engine/files/io/file.h"
#include "engine/plan/config/job_files.h"
#include "engine/plan/planner/fit.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/report/explain.h"
#include "engine/plan/report/plan_html.h"
#include "engine/plan/report/step_report.h"
#include "engine/plan/search/decided_fields.h"
#include "engine/plan/search/search.h"
#include "engine/plan/time/prediction.h"
#include "engine/plan/time/profile.h"
#include "engine/run/runtime/backend.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "kernels/hardware_threads.h"
#include "kernels/op_backend.h"
#include "tools/command_line.h"
#include "tools/output_file.h"
#include "tools/plan_flags.h"
#include "tools/read_trace.h"

namespace shale {
namespace {

int Fail(const absl::Status& status, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "plan: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

// Returns what makes variants of the job. It starts from the file for each, because defaults may depend on a value.
JobWith JobWithOf(const PlanFlags& flags, const DataFacts& data) {
  return [&flags, &data,
          file = std::optional<JobFile>()](const std::vector<Override>& settings) mutable -> absl::StatusOr<Job> {
    if (!file) {
      SHALE_ASSIGN_OR_RETURN(file, JobFile::Read(flags.job));
    }
    std::vector<std::string> overrides = flags.Overrides();
    for (const Override& setting : settings) overrides.push_back(setting.text());
    absl::StatusOr<Job> changed = file->With(overrides);
    if (!changed.ok()) return changed;
    Job applied = *changed;
    ApplyDataFacts(data, applied);
    if (applied == *changed) return changed;  // JobFile has checked it.
    if (const absl::Status status = ValidateJob(applied); !status.ok()) return status;
    return applied;
  };
}

int RunFit(const PlanFlags& flags, const Job& job, const Machine& machine, const WorkLimits& limits,
           const JobWith& job_with) {
  if (const absl::Status status = CheckFitField(flags.fit); !status.ok()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("--fit: ", status.message())), kExitUsage);
  }
  const absl::StatusOr<Fit> fit = FindFit(flags.fit, job, job_with, machine, FitEffort::kThorough, limits);
  if (absl::IsDeadlineExceeded(fit.status())) {
    return Fail(absl::DeadlineExceededError(
                    absl::StrCat("--fit found no value within ", flags.seconds, " s; give more (--seconds)")),
                kExitFailed);
  }
  // A budget is all that a search lacks on a machine without the job's kind of device.
  const bool has_none = job.memory.budget_bytes == 0 && machine.default_budget &&
                        absl::IsFailedPrecondition(machine.default_budget(job.sharding.ranks).status());
  if (absl::IsFailedPrecondition(fit.status()) && has_none) {
    return Fail(absl::FailedPreconditionError(absl::StrCat(
                    "--fit knows no memory of device ", job.runtime.device == DeviceType::kCpu ? "CPU" : "CUDA",
                    ", because there is none here; set memory.budget_bytes to what one rank has")),
                kExitUsage);
  }
  if (!fit.ok()) return Fail(fit.status(), kExitUsage);
  std::printf("%s\n", FitText(*fit).c_str());
  return kExitOk;
}

// Takes the profile of this machine, or of its class, if none was named. Adds a line to `remark` if that is not what
// was measured here.
void TakeOwnProfile(const Job& job, const absl::StatusOr<std::unique_ptr<Backend>>& backend, PlanFlags& flags,
                    std::string& remark) {
  const std::string gpu = backend.ok() ? (*backend)->device_name() : "";
  const bool here = job.runtime.device == DeviceType::kCpu || !gpu.empty();
  if (flags.profile != nullptr || !here) return;
  FoundProfile found = ProfileOfThisMachine(gpu);
  flags.profile = std::move(found.profile);
  if (found.remark.empty()) return;
  absl::StrAppend(&remark, Paragraph(absl::StrCat("Seconds: ", found.remark, ".")));
}

// Predicts a step, if there is a profile. Adds to `remark` if the job does not fit the machine, unless `remark` says
// that already, or if the profile does not say how fast its GPUs multiply in fp8, as the job does.
std::optional<Prediction> Predicted(const PlanFlags& flags, const ResolvedJob& resolved, std::string& remark) {
  if (flags.profile == nullptr) return std::nullopt;
  const auto& [job, plan] = resolved;
  const bool on_gpus = job.runtime.device == DeviceType::kCuda;
  if (on_gpus && remark.empty() && plan.arena_bytes > flags.profile->device_bytes()) {
    absl::StrAppend(&remark, "The job does not fit ", flags.profile->name(), ", whose devices have ",
                    FormatBytes(flags.profile->device_bytes()), ".\n");
  }
  const bool in_float8 = job.precision.matmuls == MatMulPrecision::kFloat8;
  if (on_gpus && in_float8 && flags.profile->peak_flops_fp8() == 0) {
    absl::StrAppend(&remark, "The job has precision.matmuls FP8, and the profile of ", flags.profile->name(),
                    " has no peak_flops_fp8, so the seconds are those of matmuls at the speed of bf16.\n");
  }
  return PredictStep(job, plan, *flags.profile, flags.Places());
}

// Searches for the fastest way to run the job.
absl::StatusOr<SearchResult> Search(const PlanFlags& flags, const Job& job, const Machine& machine,
                                    const WorkLimits& limits, const JobWith& job_with) {
  if (machine.profile == nullptr) {
    return absl::FailedPreconditionError(
        "--search needs the seconds of a machine; measure this one once (calibrate), or name one with --machine");
  }
  SearchQuery query{.job = job, .machine = machine, .job_with = job_with};
  if (flags.search != kAllFields) query.fields = absl::StrSplit(flags.search, ',');
  absl::StatusOr<SearchResult> found = FindFastest(query, limits);
  if (absl::IsDeadlineExceeded(found.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat("--search found nothing that fits within ", flags.seconds, " s; give more (--seconds)"));
  }
  if (!found.ok()) return absl::Status(found.status().code(), absl::StrCat("--search: ", found.status().message()));
  return found;
}

// Writes the verdict for programs, where --json and --proto say.
absl::Status WriteForPrograms(const PlanFlags& flags, const Admission& admission, const PlanSeconds& seconds = {}) {
  if (flags.json_is_printed()) {
    std::fputs(PlanJson(admission, flags.detail(), seconds).c_str(), stdout);
  } else if (!flags.json.empty()) {
    SHALE_RETURN_IF_ERROR(WriteOutput(flags.json, PlanJson(admission, flags.detail(), seconds)));
  }
  if (flags.proto.empty()) return absl::OkStatus();
  return WriteOutput(flags.proto, PlanMessage(admission, flags.detail(), seconds));
}

// Says why the job has no plan, also to programs if that is because of the job.
int Refuse(const PlanFlags& flags, const absl::Status& why, std::vector<JobError> errors = {}) {
  if (absl::IsInvalidArgument(why) || absl::IsResourceExhausted(why)) {
    const absl::Status status = WriteForPrograms(flags, Refused(why, std::move(errors), std::nullopt));
    if (!status.ok()) return Fail(status, kExitFailed);
  }
  return Fail(why, kExitUsage);
}

// Prints the plan as text, unless --json prints it.
absl::Status PrintPlan(const PlanFlags& flags, const ResolvedJob& resolved, const PlanSeconds& seconds,
                       const std::string& remark, const Machine& machine, const WorkLimits& limits,
                       const JobWith& job_with) {
  const StepProgram& program = resolved.plan.train.step.program;
  if (flags.json_is_printed()) {
    std::fputs(remark.c_str(), stderr);
    return absl::OkStatus();
  }
  std::fputs(PlanText(resolved.job, resolved.plan).c_str(), stdout);
  const std::string no_seconds = Paragraph(
      absl::StrCat("To predict the seconds of a step, measure this machine once (calibrate), or name one with "
                   "--machine: ",
                   absl::StrJoin(ProfileNames(), ", "), "."));
  std::printf("\n%s", (seconds.step ? TimeText(*seconds.step) : no_seconds).c_str());
  if (seconds.step) {
    const PauseTimes pauses = PredictPauses(resolved.job, resolved.plan, *flags.profile, flags.Places());
    std::printf("\n%s", PausesText(resolved.job, resolved.plan, pauses, *seconds.step).c_str());
  }
  if (!remark.empty()) std::printf("\n%s", remark.c_str());
  if (flags.timeline) std::printf("\n%s", TimelineText(program, TimelineOf(program)).c_str());
  if (flags.explain) {
    const absl::StatusOr<std::string> text = ExplainText(resolved.job, resolved.plan, machine, limits, job_with);
    if (absl::IsDeadlineExceeded(text.status())) {
      return absl::DeadlineExceededError(
          absl::StrCat("--explain compared nothing within ", flags.seconds, " s; give more (--seconds)"));
    }
    if (!text.ok()) return text.status();
    std::printf("\n%s", text->c_str());
    if (seconds.step) std::printf("\n%s", PathText(*seconds.step).c_str());
  }
  if (seconds.search) std::printf("\n%s", SearchText(*seconds.search).c_str());
  if (flags.dump_program) std::printf("\n%s", ProgramText(resolved.job, resolved.plan).c_str());
  return absl::OkStatus();
}

// Reads the step that --trace names. Returns none without --trace.
absl::StatusOr<std::optional<MeasuredStep>> TracedStep(const PlanFlags& flags, const JobPlan& plan) {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  if (flags.trace.empty()) return std::nullopt;
  if (flags.profile == nullptr) {
    return absl::InvalidArgumentError(
        "--trace is shown beside predicted seconds; measure this machine once (calibrate), or name one with --machine");
  }
  SHALE_ASSIGN_OR_RETURN(const std::string json, ReadFile(flags.trace, kMostBytes));
  absl::StatusOr<MeasuredStep> step = ReadTrace(json, plan.train.step.program, plan.options.mesh.ranks());
  if (!step.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--trace: ", flags.trace, " has ", step.status().message()));
  }
  return *std::move(step);
}

// Writes the files for people that the flags name. `measured` may be null.
absl::Status WriteFiles(const PlanFlags& flags, const ResolvedJob& resolved, const PlanSeconds& seconds,
                        const MeasuredStep* measured, const Machine& machine, const WorkLimits& limits,
                        const JobWith& job_with) {
  const auto& [job, plan] = resolved;
  std::vector<ChangedJob> changes;
  if (!flags.html.empty()) {
    Machine with_budget = machine;  // That of the plan, so that the job itself is as it was planned.
    with_budget.default_budget = [&](int64_t) -> absl::StatusOr<Budget> { return plan.budget; };
    Drafter drafter(job, with_budget, limits, job_with);
    changes = ChangesOf(drafter);
  }
  absl::Status status;
  const auto write = [&](const std::string& path, auto&& contents) {
    if (status.ok() && !path.empty()) status = WriteOutput(path, contents());
  };
  write(flags.html, [&] { return PlanHtml(job, plan, seconds, changes, measured); });
  if (!flags.searched_job.empty() && seconds.search != nullptr) {
    std::vector<std::string> overrides = flags.Overrides();
    for (const Override& setting : seconds.search->best.overrides) overrides.push_back(setting.text());
    overrides.emplace_back(kNothingSearched);  // A run does not search again.
    // From the file, so that nothing that the data decides is in it.
    SHALE_ASSIGN_OR_RETURN(const Job found, LoadJob(flags.job, overrides));
    write(flags.searched_job, [&] { return SearchedJobText(*seconds.search, found); });
  }
  write(flags.memory_snapshot, [&] { return MemorySnapshot(plan); });
  return status;
}

// Returns the machine on which the job is planned: this one, which borrows the backend. If the program lacks the job's
// kind of device, returns a machine that has it. Nothing is known of its memory, so its budget is the error. A job for
// GPUs of a machine that was named (null: none was) is planned for those GPUs.
absl::StatusOr<Machine> MachineOf(const Job& job, const absl::StatusOr<std::unique_ptr<Backend>>& backend,
                                  const proto::MachineProfile* named) {
  if (named != nullptr && job.runtime.device == DeviceType::kCuda) {
    absl::StatusOr<Machine> machine = PlanningMachineOfProfile(job, HardwareThreads(), *named);
    if (machine.ok()) machine->default_budget = BudgetOn(*named), machine->name = named->name();
    return machine;
  }
  if (backend.ok()) return (*backend)->machine();
  if (!absl::IsFailedPrecondition(backend.status())) return backend.status();
  absl::StatusOr<Machine> machine = PlanningMachine(job, HardwareThreads());
  if (machine.ok()) machine->default_budget = [why = backend.status()](int64_t) { return why; };
  return machine;
}

// Returns whether --set gives the field at `path`, or a message that has it.
bool IsSet(const PlanFlags& flags, absl::string_view path) {
  return std::any_of(flags.set.begin(), flags.set.end(), [&](absl::string_view set) {
    return absl::StartsWith(absl::StrCat(path, "."), absl::StrCat(set.substr(0, set.find('=')), "."));
  });
}

// Returns the error of a job. LoadJob takes the fields that other flags give for those of --set, so this names the
// flags.
absl::Status WithOwnFlags(const PlanFlags& flags, const absl::Status& status, std::vector<JobError>& errors) {
  std::string text(status.message());
  const auto name = [&](absl::string_view path, const std::string& flag) {
    text = absl::StrReplaceAll(text, {{absl::StrCat("--set: ", path, ": "), absl::StrCat(flag, ": ", path, ": ")}});
    for (JobError& error : errors) {
      if (error.source == "--set" && error.path == path) error.source = flag;
    }
  };
  if (!flags.machine.empty() && !IsSet(flags, "runtime.device")) {
    name("runtime.device", absl::StrCat("--machine=", flags.machine));
  }
  if (flags.ranks > 0) {
    name("sharding.ranks", absl::StrCat("--ranks=", flags.ranks));
  } else if (flags.hosts > 0 && !IsSet(flags, "sharding.ranks")) {
    name("sharding.ranks", absl::StrCat("--hosts=", flags.hosts));
  }
  return absl::Status(status.code(), text);
}

// Loads the job. Refuses one that --set gives another device than the machine that was named: the profile knows no
// seconds of its ops.
absl::StatusOr<Job> LoadJobForMachine(const PlanFlags& flags, std::vector<JobError>& errors) {
  absl::StatusOr<Job> job = LoadJob(flags.job, flags.Overrides(), ModelFrom::kJob, &errors);
  if (!job.ok()) return WithOwnFlags(flags, job.status(), errors);
  if (flags.machine.empty()) return job;
  const absl::string_view device = job->runtime.device == DeviceType::kCpu ? "CPU" : "CUDA";
  if (device == flags.profile->device()) return job;
  return absl::InvalidArgumentError(absl::StrCat("--machine=", flags.machine, " has device ", flags.profile->device(),
                                                 ", and --set gives the job runtime.device ", device,
                                                 "; leave one of them out"));
}

// Decides the fields that the job leaves to a search (runtime.search), as a run does, if the speed of the machine is
// known, and sets them in the job and in `flags`. If nothing fits, leaves them as they are and says so in `remark`.
absl::Status DecideAsInARun(const DataFacts& data, const Machine& machine, const WorkLimits& limits, PlanFlags& flags,
                            Job& job, std::string& remark) {
  if (job.runtime.search.empty()) return absl::OkStatus();
  absl::StatusOr<DecidedFields> decided = DecideFields(job, data, machine, JobWithOf(flags, data), limits);
  if (absl::IsResourceExhausted(decided.status())) {
    absl::StrAppend(&remark, Paragraph(absl::StrCat(decided.status().message(), ".")));
    return absl::OkStatus();
  }
  const bool without_seconds = machine.profile == nullptr && absl::IsFailedPrecondition(decided.status());
  if (!decided.ok()) return without_seconds ? absl::OkStatus() : decided.status();
  flags.set.insert(flags.set.end(), decided->settings.begin(), decided->settings.end());
  flags.searched = std::move(decided->why);
  SHALE_ASSIGN_OR_RETURN(job, LoadJob(flags.job, flags.Overrides()));
  return absl::OkStatus();
}

// Prints and writes the plan of a job, and what a search for faster settings finds, if one is asked for.
int RunPlan(const PlanFlags& flags, Job job, const DataFacts& data, const Machine& machine,
            const std::string& profile_remark, const WorkLimits& limits) {
  std::string remark;
  std::optional<Refusal> refusal;
  const JobWith job_with = JobWithOf(flags, data);
  absl::StatusOr<ResolvedJob> resolved = ResolveJobForAnywhere(job, data, machine, remark, refusal, job_with);
  if (!resolved.ok()) return Refuse(flags, resolved.status());
  resolved->plan.searched = flags.searched;
  Admission admission = refusal ? PlannedThoughRefused(*refusal, *std::move(resolved)) : Admitted(*std::move(resolved));
  const absl::StatusOr<std::optional<MeasuredStep>> measured = TracedStep(flags, admission.resolved->plan);
  if (!measured.ok()) return Fail(measured.status(), kExitUsage);
  const std::optional<Prediction> step = Predicted(flags, *admission.resolved, remark);
  for (const std::string& line : JobRemarks(admission.resolved->job)) absl::StrAppend(&remark, line, ".\n");
  remark += profile_remark;
  absl::StatusOr<SearchResult> search = absl::NotFoundError("");  // As it stays without --search.
  if (!flags.search.empty()) {
    ApplyDataFacts(data, job);
    search = Search(flags, job, machine, limits, job_with);
  }
  // If no setting fits, the plan of the job is printed all the same.
  const bool none_fits = absl::IsResourceExhausted(search.status());
  if (none_fits) admission.remarks.emplace_back(search.status().message());
  if (!flags.search.empty() && !search.ok() && !none_fits) {
    std::fputs(profile_remark.c_str(), stderr);
    return Fail(search.status(), absl::IsDeadlineExceeded(search.status()) ? kExitFailed : kExitUsage);
  }
  const PlanSeconds seconds{.step = step ? &*step : nullptr, .search = search.ok() ? &*search : nullptr};
  if (!remark.empty()) admission.remarks.push_back(remark);
  absl::Status status = PrintPlan(flags, *admission.resolved, seconds, remark, machine, limits, job_with);
  if (status.ok()) status = WriteForPrograms(flags, admission, seconds);
  if (status.ok()) {
    const MeasuredStep* traced = *measured ? &**measured : nullptr;
    status = WriteFiles(flags, *admission.resolved, seconds, traced, machine, limits, job_with);
  }
  if (!status.ok()) return Fail(status, kExitFailed);
  if (none_fits) Fail(search.status(), kExitUsage);
  if (refusal) Fail(absl::ResourceExhaustedError(admission.text), kExitUsage);
  return none_fits || refusal ? kExitUsage : kExitOk;
}

int Run(PlanFlags flags) {
  if (const absl::Status status = CheckPlanFlags(flags); !status.ok()) return Fail(status, kExitUsage);
  if (!flags.machine.empty()) {
    absl::StatusOr<proto::MachineProfile> profile = ReadProfile(flags.machine);
    if (!profile.ok()) {
      return Fail(absl::InvalidArgumentError(absl::StrCat("--machine: ", profile.status().message())), kExitUsage);
    }
    flags.profile = std::make_shared<const proto::MachineProfile>(*std::move(profile));
  }
  const WorkLimits limits = flags.Limits();
  std::vector<JobError> errors;
  absl::StatusOr<Job> job = LoadJobForMachine(flags, errors);
  if (!job.ok()) return Refuse(flags, job.status(), std::move(errors));
  if (flags.processes > job->sharding.ranks) {
    return Refuse(flags, absl::InvalidArgumentError(absl::StrCat("--processes: found ", flags.processes,
                                                                 "; the job has ", Plural(job->sharding.ranks, "rank"),
                                                                 ", so it runs in at most as many processes")));
  }
  const absl::StatusOr<DataFacts> data = DataFactsForPlanning(*job);
  if (!data.ok()) return Refuse(flags, data.status());
  if (const auto cpu_matmuls = DecideCpuMatMuls(*job); !cpu_matmuls.ok()) return Fail(cpu_matmuls.status(), kExitUsage);
  const absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(*job);
  absl::StatusOr<Machine> machine = MachineOf(*job, backend, flags.profile.get());
  if (!machine.ok()) return Refuse(flags, machine.status());
  // The memory of this machine says nothing about another one.
  if (!flags.machine.empty() && job->runtime.device == DeviceType::kCpu) machine->default_budget = nullptr;
  std::string profile_remark;
  TakeOwnProfile(*job, backend, flags, profile_remark);
  machine->profile = flags.profile;
  machine->hosts = flags.hosts;
  const absl::Status decided = DecideAsInARun(*data, *machine, limits, flags, *job, profile_remark);
  if (absl::IsDeadlineExceeded(decided)) return Fail(decided, kExitFailed);
  if (!decided.ok()) return Refuse(flags, decided);
  if (flags.fit.empty()) return RunPlan(flags, *std::move(job), *data, *machine, profile_remark, limits);
  std::fputs(profile_remark.c_str(), stderr);
  ApplyDataFacts(*data, *job);
  return RunFit(flags, *job, *machine, limits, JobWithOf(flags, *data));
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
#if defined(__GLIBC__)
  // A search makes and destroys hundreds of programs. Their memory is used again, not given back to the system.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 16 << 20);
#endif
  shale::PlanFlags flags;
  shale::CommandLine line("plan",
                          "Compiles the program of a job and plans its memory, for any number of ranks and without "
                          "running anything: memory by category, communication, arithmetic, and the seconds of a step "
                          "on a machine that was measured or is named. The job's data need not exist.");
  shale::AddPlanFlags(line, flags);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return shale::Run(flags);
}
