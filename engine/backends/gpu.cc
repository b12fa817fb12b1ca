// Defines the functions of job_backend.h for programs that run on GPUs alone.
#include "engine/backends/cuda_jobs.h"
#include "engine/backends/job_backend.h"

namespace shale {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job) {
  if (job.runtime.device == DeviceType::kCuda) return CreateCudaJobBackend(job, /*create_host_ops=*/{});
  return absl::FailedPreconditionError(
      "runtime.device is CPU, and this program was built without CPU kernels; set runtime.device=CUDA, or use the "
      "program that has both");
}

absl::StatusOr<std::string> DecideCpuProducts(Job&) { return ""; }

}  // namespace shale
