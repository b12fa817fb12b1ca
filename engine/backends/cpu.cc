// Defines the functions of job_backend.h for programs that run on CPUs alone.
#include "engine/backends/cpu_jobs.h"
#include "engine/backends/cpu_products_choice.h"
#include "engine/backends/job_backend.h"

namespace shale {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job) {
  if (job.runtime.device == DeviceType::kCpu) return CreateCpuJobBackend(job);
  return absl::FailedPreconditionError(
      "runtime.device is CUDA, and this program runs on CPUs alone: it is meant for CPUs, or there was no CUDA "
      "toolkit in $CUDA_HOME or /usr/local/cuda when it was built. Build it again with a toolkit, or set "
      "runtime.device=CPU");
}

absl::StatusOr<std::string> DecideCpuProducts(Job& job) { return DecideCpuJobProducts(job, UserCacheFolder()); }

}  // namespace shale
