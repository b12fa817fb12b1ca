// Defines the functions of job_backend.h for programs that run on CPUs alone.
#include "engine/api/backend.h"
#include "engine/backends/cpu_jobs.h"
#include "engine/backends/cpu_products_choice.h"
#include "kernels/check.h"

namespace shale {

namespace {

absl::Status CheckDevice(const Job& job) {
  if (job.runtime.device == DeviceType::kCpu) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "runtime.device is CUDA, and this program runs on CPUs alone: it is meant for CPUs, or there was no CUDA "
      "toolkit in $CUDA_HOME or /usr/local/cuda when it was built. Build it again with a toolkit, or set "
      "runtime.device=CPU");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job) {
  SHALE_RETURN_IF_ERROR(CheckDevice(job));
  return CreateCpuJobBackend(job);
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackendOfProcess(const Job& job, const BackendPlace&) {
  return CreateBackend(job);
}

void PrepareEnvironment(const Job&) {}

absl::StatusOr<Machine> PlanningMachine(const Job& job, int64_t hardware_threads) {
  SHALE_RETURN_IF_ERROR(CheckDevice(job));
  return CpuPlanningMachine(job, hardware_threads);
}

absl::StatusOr<std::string> DecideCpuProducts(Job& job) { return DecideCpuJobProducts(job, UserCacheFolder()); }

}  // namespace shale
