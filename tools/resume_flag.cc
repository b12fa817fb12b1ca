#include "tools/resume_flag.h"

#include <unistd.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/checkpoint/run_paths.h"
#include "engine/config/parse.h"
#include "engine/io/file.h"

namespace shale {
namespace {

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace

ResumeOptions ParseResume(const std::string& resume, bool overwrite) {
  if (resume.empty()) return {.from = overwrite ? ResumeFrom::kReplace : ResumeFrom::kNothing};
  if (resume == "latest") return {.from = ResumeFrom::kLatest};
  if (resume == "auto") return {.from = ResumeFrom::kLatestOrStart};
  return {.from = ResumeFrom::kPath, .path = resume};
}

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

}  // namespace shale
