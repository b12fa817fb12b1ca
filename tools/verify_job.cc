#include "tools/verify_job.h"

#include <cstdint>
#include <cstdio>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/verify.h"
#include "engine/plan/time/profile.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"
#include "tools/command_line.h"

namespace shale {
namespace {

void Print(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

absl::StatusOr<VerifyReport> Run(const std::string& job_file, const std::vector<std::string>& overrides,
                                 const std::atomic<bool>& cancelled, int64_t& checks) {
  SHALE_ASSIGN_OR_RETURN(Job job, LoadJob(job_file, overrides, ModelFrom::kJobAndData));
  SHALE_RETURN_IF_ERROR(DecideCpuMatMuls(job).status());
  if (!job.runtime.deterministic_attention) {
    Print("The checks compare bits, so they compute with runtime.deterministic_attention=true.\n");
    job.runtime.deterministic_attention = true;
  }
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(job));
  Print(VerifyHead() + "\n");
  const auto on_row = [&](const VerifyRow& row) {
    ++checks;
    Print(VerifyLine(row) + "\n");
  };
  VerifyOptions options{.backend = backend.get(), .on_row = on_row, .cancelled = &cancelled};
  const FoundProfile found = ProfileOfThisMachine(backend->device_name());
  options.machine = found.profile.get();
  if (const std::string line = found.Line(); !line.empty()) Print(line + "\n");
  return Verify(job, options);
}

}  // namespace

std::optional<int> VerifyJob(const std::string& job_file, const std::vector<std::string>& overrides,
                             const std::atomic<bool>& cancelled) {
  int64_t checks = 0;
  const absl::StatusOr<VerifyReport> report = Run(job_file, overrides, cancelled, checks);
  if (absl::IsCancelled(report.status()) && cancelled) {
    Print(absl::StrCat("stopped after ", Plural(checks, "check"), "; the others were not run\n"));
    return std::nullopt;
  }
  if (!report.ok()) {
    const std::string message(report.status().message());
    std::fprintf(stderr, "train: %s\n", message.c_str());
    return kExitUsage;
  }
  Print(report->Remarks());
  return report->holds() ? kExitOk : kExitFailed;
}

}  // namespace shale
