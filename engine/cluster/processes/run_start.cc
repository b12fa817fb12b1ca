#include "engine/cluster/processes/run_start.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/api/job.h"
#include "engine/files/checkpoint/manifest.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "engine/plan/search/decided_fields.h"
#include "engine/run/state/rank_state.h"
#include "engine/run/train/reports.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Returns the time as "2026-01-31 23:59:00 UTC".
std::string TimeNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  char text[64];
  return gmtime_r(&now, &utc) != nullptr && std::strftime(text, sizeof(text), "%F %T UTC", &utc) > 0 ? text : "";
}

int64_t BytesOfCheckpoint(const JobPlan& plan) {
  const JobState& state = plan.train.step.state;
  Manifest manifest;
  manifest.values = SavedValuesOf(state);
  manifest.frozen_values = FrozenValuesOf(state);
  manifest.states = SavedStatesOf(state);
  manifest.parameters = SavedParametersOf(plan.train.graph, state);
  int64_t bytes = 0;
  for (const PartSpec& part : manifest.parts()) {
    for (const SavedParameter& parameter : manifest.parameters) {
      if (manifest.Has(part.part, parameter)) bytes += manifest.ElementsOf(part.part, parameter) * part.element_bytes();
    }
  }
  return bytes;
}

// Returns the sections in which a job divides a step in another way than that of a run, `ran`: "batch, memory".
std::string DifferentSections(const Job& ran, const Job& job) {
  MemoryConfig memory = job.memory;
  // A job that ran has its default written out.
  if (memory.loss_chunk_tokens == 0) memory.loss_chunk_tokens = ran.memory.loss_chunk_tokens;
  const std::pair<bool, absl::string_view> sections[] = {
      {ran.batch != job.batch, "batch"},
      {ran.sharding != job.sharding, "sharding"},
      {ran.precision != job.precision, "precision"},
      {ran.memory != memory, "memory"},
      {ran.activation_checkpointing != job.activation_checkpointing, "activation_checkpointing"}};
  std::vector<absl::string_view> different;
  for (const auto& [differs, name] : sections) {
    if (differs) different.push_back(name);
  }
  return absl::StrJoin(different, ", ");
}

// Returns why a job cannot go on with what a run in `run_folder` had decided, or "" if it can. `as_before` is the job
// with these decisions. It may be one that the rules refuse, because the job has changed otherwise: an update in
// backward does not go with clipping by the norm of all gradients.
std::string WhyNotAsBefore(const Job& ran, absl::string_view run_folder, const Job& as_before) {
  const std::string different = DifferentSections(ran, as_before);
  if (!different.empty()) return absl::StrCat("differs from that of the run in ", run_folder, " in ", different);
  return ValidateJob(as_before).ok() ? "" : absl::StrCat("rules out what the run in ", run_folder, " has");
}

absl::string_view LineOf(StartStage stage) {
  switch (stage) {
    case StartStage::kAllocating: return "allocating memory, and trying what the run will use of libraries";
    case StartStage::kLoading: return "setting the initial weights";
    case StartStage::kRestoring: return "reading the checkpoint";
    case StartStage::kFirstStep: return "";
  }
  return "";
}

}  // namespace

RunFolder::Existing ExistingFor(ResumeFrom from) {
  switch (from) {
    case ResumeFrom::kNothing: return RunFolder::Existing::kRefuse;
    case ResumeFrom::kReplace: return RunFolder::Existing::kReplace;
    default: return RunFolder::Existing::kContinue;
  }
}

std::string HfFolder(const Job& job, const RunFolder& folder, const ResumeOptions& resume) {
  if (!job.hf_folder.empty() && Exists(job.hf_folder)) return job.hf_folder;
  return HfFolderOfRun(folder, resume);
}

std::string HfFolderOfRun(const RunFolder& folder, const ResumeOptions& resume) {
  if (resume.from == ResumeFrom::kNothing || resume.from == ResumeFrom::kReplace) return "";
  if (const std::string own = RunHfPath(folder.path()); Exists(own)) return own;
  if (resume.from != ResumeFrom::kPath) return "";
  const std::string theirs = RunHfPath(RunOfCheckpoint(resume.path));
  return Exists(theirs) ? theirs : "";
}

KeptDecisions KeepDecisions(const RunFolder& folder, const ResumeOptions& resume, Job& job) {
  constexpr int64_t kMaxJobBytes = int64_t{1} << 20;
  if (ExistingFor(resume.from) != RunFolder::Existing::kContinue) return {};
  const std::string run_folder = resume.from == ResumeFrom::kPath ? RunOfCheckpoint(resume.path) : folder.path();
  const bool open_cpu_matmuls = job.runtime.cpu_matmuls == CpuMatMuls::kAuto && job.runtime.device == DeviceType::kCpu;
  const bool open_accumulation = job.sharding.accumulation == Accumulation::kAuto;
  const bool searches = !job.runtime.search.empty();
  if (!open_cpu_matmuls && !open_accumulation && !searches) return {};
  const absl::StatusOr<std::string> text = ReadFile(RunJobPath(run_folder), kMaxJobBytes);
  if (!text.ok()) return {};
  const absl::StatusOr<Job> former = ParseRecordedJob(*text, RunJobPath(run_folder));
  if (!former.ok()) return {};
  if (open_cpu_matmuls && former->precision.compute == job.precision.compute) {
    job.runtime.cpu_matmuls = former->runtime.cpu_matmuls;
  }
  Job as_before = WithSearchedFieldsOf(*former, job);
  if (open_accumulation) as_before.sharding.accumulation = former->sharding.accumulation;
  const std::string why_not = WhyNotAsBefore(*former, run_folder, as_before);
  if (why_not.empty()) job = std::move(as_before);
  if (!searches) return {};
  if (why_not.empty()) return {*text, absl::StrCat("runtime.search: these fields are as in the run in ", run_folder)};
  return {.line = absl::StrCat("runtime.search: searched again, because the job ", why_not)};
}

absl::Status DecidePeakFlops(JobProcesses& processes, const Backend& backend, const Job& job, int64_t ranks_on_host,
                             TrainerOptions& options, std::string& measured) {
  if (job.telemetry.peak_flops_measured.empty()) options.peak_flops = job.telemetry.peak_flops;
  if (options.peak_flops != 0) return absl::OkStatus();
  const auto measure = [&]() -> absl::StatusOr<std::string> {
    const DType dtype = DTypeOf(job.precision.compute);
    if (backend.NominalPeakFlops(dtype) == 0) measured = TimeNow();
    SHALE_ASSIGN_OR_RETURN(options.peak_flops, PeakFlops(backend, dtype, ranks_on_host));
    if (job.precision.matmuls == MatMulPrecision::kFloat8) {
      options.peak_flops_fp8 = Float8PeakFlops(backend, ranks_on_host);
    }
    return "";
  };
  return processes.InProcessZero(measure).status();
}

std::string RecordedJob(Job job, double peak_flops, const std::string& measured) {
  if (!job.telemetry.peak_flops_measured.empty()) job.telemetry.peak_flops = 0;  // That of a former run.
  job.telemetry.peak_flops_measured = measured;
  if (!measured.empty()) job.telemetry.peak_flops = peak_flops;
  return ResolvedJobText(job);
}

std::string SlowSaveWarning(const JobPlan& plan, const RunFolder& folder, int64_t ranks_on_host,
                            int64_t grace_seconds) {
  constexpr int64_t kMostProbeBytes = int64_t{16} << 20;
  const int64_t ranks = plan.options.mesh.ranks(), all_bytes = BytesOfCheckpoint(plan);
  // Each rank writes an equal part, and hosts write at the same time.
  const int64_t bytes = CeilDivide(all_bytes * ranks_on_host, ranks);
  const std::string probe(std::min(bytes, kMostProbeBytes), 'x');
  const std::string path = RunFolder::ProbePath(folder.path());
  const auto start = std::chrono::steady_clock::now();
  const absl::Status written = WriteFileDurably(path, probe);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  unlink(path.c_str());
  if (!written.ok() || bytes == 0) return "";
  const double seconds = taken.count() * static_cast<double>(bytes) / static_cast<double>(probe.size());
  if (seconds <= static_cast<double>(grace_seconds)) return "";
  return absl::StrCat("warning: a save of ", FormatBytes(all_bytes),
                      bytes < all_bytes ? absl::StrCat(", ", FormatBytes(bytes), " on each host,") : "",
                      " probably takes ", FormatDuration(seconds), ", and after SIGTERM a process has ", grace_seconds,
                      " s to end (--grace_seconds); ask the system that runs the job for more, or save often enough "
                      "(checkpoint.every_steps) to lose little");
}

std::string DiskSpaceWarning(const JobPlan& plan, const CheckpointConfig& config, const RunFolder& folder) {
  struct statvfs disk;
  const absl::StatusOr<std::vector<CheckpointPath>> there = ListCheckpoints(folder.checkpoints_path());
  if (!there.ok() || statvfs(folder.path().c_str(), &disk) != 0) return "";
  // A checkpoint is written before an older one is removed.
  const int64_t bytes = BytesOfCheckpoint(plan), kept = config.keep_last + (config.keep_best ? 1 : 0) + 1;
  const int64_t more = std::max<int64_t>(1, kept - std::ssize(*there));
  constexpr double kMostBytes = 9e18;  // More is no number of bytes.
  const double needed = std::min(kMostBytes, static_cast<double>(bytes) * static_cast<double>(more));
  const double free = std::min(kMostBytes, static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize));
  if (needed <= free) return "";
  return absl::StrCat("warning: a checkpoint takes ", FormatBytes(bytes), ", and the ", Plural(more, "checkpoint"),
                      " that the run will add ", FormatBytes(static_cast<int64_t>(needed)), ", but ", folder.path(),
                      " has ", FormatBytes(static_cast<int64_t>(free)),
                      " free; free some, choose another disk (telemetry.run_folder), or keep fewer "
                      "(checkpoint.keep_last)");
}

void StartLines::Take(const RunEvent& event) {
  if (const auto* plan = std::get_if<PlanReady>(&event.what)) {
    large_ = plan->arena_bytes >= kLargeArenaBytes;
    if (large_) {
      print_(absl::StrCat("planned: ", WithCommas(plan->parameters), " parameters, ", FormatBytes(plan->arena_bytes),
                          " a rank"));
    }
  } else if (const auto* progress = std::get_if<Progress>(&event.what); progress != nullptr && large_) {
    if (const absl::string_view line = LineOf(progress->stage); !line.empty()) print_(line);
  }
  next_.Take(event);
}

}  // namespace shale
