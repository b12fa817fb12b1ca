#include "engine/cluster/processes/run_in_folder.h"

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/api/backend.h"
#include "engine/api/plan_text.h"
#include "engine/cluster/launch/joined_processes.h"
#include "engine/cluster/processes/run_start.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "engine/files/io/json_lines.h"
#include "engine/plan/config/job_files.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/search/decided_fields.h"
#include "engine/plan/time/profile.h"
#include "engine/run/runtime/trace.h"
#include "engine/strings/messages.h"
#include "engine/strings/printing.h"
#include "engine/strings/utf8.h"
#include "kernels/check.h"

namespace shale {
namespace {

std::string PartOfTrace(const Job& job, int process) {
  return JoinPath(job.telemetry.run_folder, absl::StrCat(kRunTracePart, process));
}

// Other tools take the path of the run into jobs, whose text holds no other paths.
absl::Status CheckRunFolderPath(const std::string& run_folder) {
  const std::string path = std::filesystem::absolute(run_folder).string();
  if (IsLineOfPath(path)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the run folder would be ", Quoted(path),
                                                 "; choose one whose path is one line of UTF-8 text "
                                                 "(telemetry.run_folder)"));
}

std::string ValueOf(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

// Adds a row to the metrics that says why the job was started again after step `step`, if the environment says that it
// was: {"step": 40, "restart": 1, "cause": "signal 9 ended process 2 (pid 17 on a)"}.
absl::Status AppendRestart(const Variables& variables, int64_t step, RunFolder& folder) {
  int64_t restarts = 0;
  std::string cause = ValueOf(variables, "SHALE_RESTART_CAUSE");
  if (!absl::SimpleAtoi(ValueOf(variables, "SHALE_RESTARTS"), &restarts)) {
    cause = "torchrun started the job again";
    if (!absl::SimpleAtoi(ValueOf(variables, "TORCHELASTIC_RESTART_COUNT"), &restarts)) return absl::OkStatus();
  }
  if (restarts <= 0) return absl::OkStatus();
  return folder.AppendMetrics(JsonObject().Add("step", step).Add("restart", restarts).Add("cause", cause));
}

}  // namespace

RunInFolder::RunInFolder(JobProcesses& processes, const Job& job, const JobRunOptions& options)
    : processes_(processes),
      job_(job),
      trace_of_all_(options.trace.path),
      print_(options.print),
      options_{.resume = options.resume, .trace = options.trace},
      sinks_(processes.leads() ? job.telemetry.sinks : SinksConfig()),
      start_lines_(sinks_, [this](absl::string_view line) { Print(line); }) {
  options_.events = &start_lines_;
  options_.job_with = options.job_with;
  if (processes.leads()) {
    options_.text_progress = options.text_progress;
  } else if (!trace_of_all_.empty()) {
    options_.trace.path = PartOfTrace(job, processes.process());
  }
}

void RunInFolder::Print(absl::string_view line) const {
  if (processes_.leads()) print_(line);
}

absl::StatusOr<std::unique_ptr<RunInFolder>> RunInFolder::Create(JobProcesses& processes, const Job& job,
                                                                 const JobRunOptions& options) {
  std::unique_ptr<RunInFolder> run(new RunInFolder(processes, job, options));
  SHALE_RETURN_IF_ERROR(run->Decide(options.resume));
  SHALE_ASSIGN_OR_RETURN(run->backend_, processes.CreateBackend(run->job_));
  run->options_.backend = run->backend_.get();
  SHALE_RETURN_IF_ERROR(DecidePeakFlops(processes, *run->backend_, run->job_, processes.joined_->ranks_on_host(),
                                        run->options_, run->measured_));
  if (processes.leads()) run->FindMachine();
  SHALE_ASSIGN_OR_RETURN(run->trainer_, processes.CreateWatched(run->job_, run->options_));
  return run;
}

void RunInFolder::FindMachine() {
  const FoundProfile found = ProfileOfThisMachine(backend_->device_name());
  machine_ = found.profile;
  options_.machine = machine_.get();
  if (const std::string line = found.Line(); !line.empty()) Print(line);
}

absl::Status RunInFolder::Decide(const ResumeOptions& resume) {
  SHALE_RETURN_IF_ERROR(processes_.CheckSame(job_));
  const auto decide = [&]() -> absl::StatusOr<std::string> {
    SHALE_RETURN_IF_ERROR(CheckRunFolderPath(job_.telemetry.run_folder));
    SHALE_RETURN_IF_ERROR(CheckSearchedFields(job_));  // A run that keeps what was decided does not search.
    // Claims the folder before anything that takes time, so that an unusable folder is reported at once.
    SHALE_ASSIGN_OR_RETURN(folder_, RunFolder::Claim(job_.telemetry.run_folder, ExistingFor(resume.from)));
    const std::string hf_folder = HfFolder(job_, *folder_, resume);
    const KeptDecisions kept = KeepDecisions(*folder_, resume, job_);
    search_line_ = kept.line;
    SHALE_ASSIGN_OR_RETURN(matmuls_line_, DecideCpuMatMuls(job_));
    SHALE_ASSIGN_OR_RETURN(const std::string failures, folder_->NextFailurePath());
    return absl::StrCat(static_cast<int>(job_.runtime.cpu_matmuls), "\n", hf_folder, "\n",
                        HfFolderOfRun(*folder_, resume), "\n", failures, "\n",
                        static_cast<int>(job_.sharding.accumulation), "\n", kept.searched_job);
  };
  SHALE_ASSIGN_OR_RETURN(const std::string text, processes_.InProcessZero(decide));
  SHALE_RETURN_IF_ERROR(TakeDecision(text));
  options_.checkpoint_folder = RunCheckpointsPath(job_.telemetry.run_folder);
  SHALE_RETURN_IF_ERROR(processes_.joined_->CheckShared(RunFolder::ProbePath(job_.telemetry.run_folder)));
  return processes_.Prepare(job_, options_);
}

absl::Status RunInFolder::TakeDecision(const std::string& text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('\n', 5));
  int cpu_matmuls = 0, accumulation = 0;
  if (parts.size() != 6 || !absl::SimpleAtoi(parts[0], &cpu_matmuls) || !absl::SimpleAtoi(parts[4], &accumulation)) {
    return absl::InternalError("process 0 sent no decision");
  }
  if (!parts[5].empty()) {
    SHALE_ASSIGN_OR_RETURN(const Job former, ParseRecordedJob(parts[5], "the job of the run that is resumed"));
    job_ = WithSearchedFieldsOf(former, job_);
    options_.job_with = {};  // It makes jobs that lack what was decided.
  }
  job_.runtime.cpu_matmuls = static_cast<CpuMatMuls>(cpu_matmuls);
  job_.sharding.accumulation = static_cast<Accumulation>(accumulation);
  hf_folder_ = std::string(parts[1]);
  // A resumed run has a copy of its tokenizer. The record of the job needs a path that does not depend on its own.
  const std::string copy(parts[2]);
  if (job_.data.has_tokenizer() && !std::filesystem::exists(job_.data.tokenizer) && !copy.empty()) {
    job_.data.tokenizer = std::filesystem::absolute(copy).string();
  }
  options_.tokenizer_folder = job_.data.has_tokenizer() ? job_.data.tokenizer : hf_folder_;
  options_.failure_folder = std::string(parts[3]);
  return absl::OkStatus();
}

std::string RunInFolder::PlanText() const {
  std::string devices = trainer_->devices().description;
  if (!devices.empty()) devices += '\n';
  if (!matmuls_line_.empty()) devices += matmuls_line_ + '\n';
  if (!search_line_.empty()) devices += search_line_ + '\n';
  return absl::StrCat(shale::PlanText(trainer_->job(), trainer_->plan()), "\noutside the arenas  ",
                      FormatBytes(trainer_->devices().overhead_bytes),
                      " of this process, as measured: code, libraries, data buffers\n", devices);
}

void RunInFolder::PrintBeginning(int64_t grace_seconds) const {
  if (!measured_.empty()) {
    Print(absl::StrCat("peak of a rank  ", FormatFlops(options_.peak_flops), "/s, measured ", measured_,
                       " (telemetry.peak_flops)"));
  }
  if (const std::string& time = trainer_->devices().step_time; !time.empty()) Print(time);
  const Resumed& resumed = trainer_->resumed();
  for (const std::string& reason : resumed.passed_over) Print(absl::StrCat("skipped: ", reason));
  if (!resumed.path.empty()) {
    Print(absl::StrCat("resuming from ", resumed.path, " after step ", WithCommas(resumed.manifest.step)));
  } else {
    for (const std::string& remark : JobRemarks(trainer_->job())) Print(remark);
    if (folder_->former_step() > 0) {
      Print(absl::StrCat("starting over: the run in ", folder_->path(), " ended after step ",
                         WithCommas(folder_->former_step()), " without a checkpoint"));
    }
  }
  const JobPlan& plan = trainer_->plan();
  for (const std::string& warning :
       {SlowSaveWarning(plan, *folder_, processes_.joined_->ranks_on_host(), grace_seconds),
        DiskSpaceWarning(plan, job_.checkpoint, *folder_)}) {
    if (!warning.empty()) Print(warning);
  }
}

absl::Status RunInFolder::Run() {
  absl::Status status = processes_
                            .InProcessZero([&]() -> absl::StatusOr<std::string> {
                              SHALE_RETURN_IF_ERROR(BeginFolder());
                              return "";
                            })
                            .status();
  if (status.ok()) status = folder_ != nullptr ? TrainToEnd(*trainer_, *folder_, print_) : trainer_->Run({});
  if (options_.machine != nullptr) Print(trainer_->devices().step_time);
  for (const std::string& line : sinks_.Close()) Print(line);
  if (status.ok()) status = JoinTraces();
  if (processes_.leads()) PrintTrace();
  return status;
}

void RunInFolder::PrintTrace() const {
  if (const std::string table = trainer_->trace().Table(); !table.empty()) {
    Print(absl::StrCat(table, "trace: ", options_.trace.path));
  } else if (!options_.trace.path.empty()) {
    Print(absl::StrCat("no trace: the run had no step ", options_.trace.first_step));
  }
}

absl::Status RunInFolder::BeginFolder() {
  const Resumed& resumed = trainer_->resumed();
  const std::string plan_text = PlanText();
  const std::string job_text = RecordedJob(trainer_->job(), options_.peak_flops, measured_);
  SHALE_RETURN_IF_ERROR(
      folder_->Begin({.job_text = job_text,
                      .plan_text = plan_text,
                      .goes_on_after = resumed.path.empty() ? std::nullopt : std::optional(resumed.manifest.step),
                      .from_elsewhere = resumed.from_elsewhere,
                      .hf_folder = hf_folder_,
                      .tokenizer_folder = job_.data.has_tokenizer() ? job_.data.tokenizer : ""}));
  SHALE_RETURN_IF_ERROR(AppendRestart(EnvironmentVariables(), trainer_->steps_done(), *folder_));
  return sinks_.Open(folder_->path());
}

absl::Status RunInFolder::JoinTraces() const {
  constexpr int64_t kMostBytes = int64_t{4} << 30;
  if (processes_.alone() || trace_of_all_.empty()) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(options_.control->Barrier(ControlChannel::kSteps));  // All have written theirs.
  if (!processes_.leads() || trainer_->trace().Table().empty()) return absl::OkStatus();
  std::vector<std::string> traces(processes_.processes());
  for (int process = 0; process < processes_.processes(); ++process) {
    const std::string part = process == 0 ? trace_of_all_ : PartOfTrace(job_, process);
    SHALE_ASSIGN_OR_RETURN(traces[process], ReadFile(part, kMostBytes));
    if (process > 0) unlink(part.c_str());
  }
  return WriteFileDurably(trace_of_all_, MergeChromeJson(traces));
}

JobRun::JobRun(std::unique_ptr<RunInFolder> run) : run_(std::move(run)) {}
JobRun::~JobRun() = default;

absl::StatusOr<std::unique_ptr<JobRun>> JobRun::Create(JobProcesses& processes, const Job& job,
                                                       const JobRunOptions& options) {
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<RunInFolder> run, RunInFolder::Create(processes, job, options));
  return std::unique_ptr<JobRun>(new JobRun(std::move(run)));
}

Trainer& JobRun::trainer() { return run_->trainer(); }
std::string JobRun::PlanText() const { return run_->PlanText(); }
void JobRun::PrintBeginning(int64_t grace_seconds) const { run_->PrintBeginning(grace_seconds); }
absl::Status JobRun::Run() { return run_->Run(); }

}  // namespace shale
