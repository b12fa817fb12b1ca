// Defines the functions of job_backend.h for programs that run on CPUs or GPUs.
#include "engine/backends/cpu_jobs.h"
#include "engine/backends/cpu_products_choice.h"
#include "engine/backends/cuda_jobs.h"
#include "engine/backends/job_backend.h"

namespace shale {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job) {
  if (job.runtime.device == DeviceType::kCpu) return CreateCpuJobBackend(job);
  return CreateCudaJobBackend(job,
                              [options = CpuOptionsOf(job)](int64_t ranks) { return CreateHostOps(options, ranks); });
}

absl::StatusOr<std::string> DecideCpuProducts(Job& job) { return DecideCpuJobProducts(job, UserCacheFolder()); }

}  // namespace shale
