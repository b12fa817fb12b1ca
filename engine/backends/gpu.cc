// Defines the functions of job_backend.h for programs that run on GPUs alone.
#include "engine/backends/cuda_jobs.h"
#include "engine/backends/job_backend.h"
#include "kernels/check.h"

namespace shale {

namespace {

absl::Status CheckDevice(const Job& job) {
  if (job.runtime.device == DeviceType::kCuda) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "runtime.device is CPU, and this program was built without CPU kernels; set runtime.device=CUDA, or use the "
      "program that has both");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job) {
  SHALE_RETURN_IF_ERROR(CheckDevice(job));
  return CreateCudaJobBackend(job, /*create_host_ops=*/{});
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackendOfProcess(const Job& job, const BackendPlace& place) {
  SHALE_RETURN_IF_ERROR(CheckDevice(job));
  return CreateCudaJobBackend(job, /*create_host_ops=*/{}, place);
}

void PrepareEnvironment(const Job& job) {
  if (job.runtime.device == DeviceType::kCuda) PrepareCudaJobEnvironment(job);
}

absl::StatusOr<Machine> PlanningMachine(const Job& job, int64_t hardware_threads) {
  SHALE_RETURN_IF_ERROR(CheckDevice(job));
  return CudaPlanningMachine(job, /*create_host_ops=*/{}, hardware_threads);
}

absl::StatusOr<std::string> DecideCpuProducts(Job&) { return ""; }

}  // namespace shale
