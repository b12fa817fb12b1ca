// Defines the functions of job_backend.h for programs that run on CPUs or GPUs.
#include "engine/backends/cpu_jobs.h"
#include "engine/backends/cpu_products_choice.h"
#include "engine/backends/cuda_jobs.h"
#include "engine/backends/job_backend.h"

namespace shale {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job) {
  return job.runtime.device == DeviceType::kCpu ? CreateCpuJobBackend(job) : CreateCudaJobBackend(job);
}

absl::StatusOr<std::string> DecideCpuProducts(Job& job) { return DecideCpuJobProducts(job, UserCacheFolder()); }

}  // namespace shale
