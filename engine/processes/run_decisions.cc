#include "engine/processes/run_decisions.h"

#include <unistd.h>

#include <cstdint>
#include <ctime>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/api/job.h"
#include "engine/checkpoint/run_paths.h"
#include "engine/io/file.h"
#include "engine/launch/world.h"
#include "engine/train/peak_flops.h"
#include "kernels/check.h"

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

void KeepCpuProducts(const RunFolder& folder, const ResumeOptions& resume, Job& job) {
  constexpr int64_t kMaxJobBytes = int64_t{1} << 20;
  if (ExistingFor(resume.from) != RunFolder::Existing::kContinue) return;
  const std::string run_folder = resume.from == ResumeFrom::kPath ? RunOfCheckpoint(resume.path) : folder.path();
  if (job.runtime.cpu_products != CpuProducts::kAuto || job.runtime.device != DeviceType::kCpu) return;
  const absl::StatusOr<std::string> text = ReadFile(RunJobPath(run_folder), kMaxJobBytes);
  if (!text.ok()) return;
  const absl::StatusOr<Job> former = ParseRecordedJob(*text, RunJobPath(run_folder));
  if (!former.ok() || former->precision.compute != job.precision.compute) return;
  job.runtime.cpu_products = former->runtime.cpu_products;
}

absl::Status DecidePeakFlops(JobProcesses& processes, const Backend& backend, const Job& job, TrainerOptions& options,
                             std::string& measured) {
  if (job.telemetry.peak_flops_measured.empty()) options.peak_flops = job.telemetry.peak_flops;
  if (options.peak_flops != 0) return absl::OkStatus();
  const auto measure = [&]() -> absl::StatusOr<std::string> {
    const DType dtype = job.precision.compute == ComputePrecision::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
    if (backend.NominalPeakFlops(dtype) == 0) measured = TimeNow();
    SHALE_ASSIGN_OR_RETURN(options.peak_flops, PeakFlops(backend, dtype, processes.world().ranks_on_host()));
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

}  // namespace shale
