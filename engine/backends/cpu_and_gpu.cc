// Defines the functions of job_backend.h for programs that run on CPUs or GPUs.
#include "engine/api/backend.h"
#include "engine/backends/cpu_jobs.h"
#include "engine/backends/cpu_products_choice.h"
#include "engine/backends/cuda_jobs.h"
#include "engine/runtime/hardware_threads.h"

namespace shale {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job) { return CreateBackendOfProcess(job, {}); }

absl::StatusOr<std::unique_ptr<Backend>> CreateBackendOfProcess(const Job& job, const BackendPlace& place) {
  if (job.runtime.device == DeviceType::kCpu) return CreateCpuJobBackend(job);
  return CreateCudaJobBackend(
      job, [options = CpuOptionsOf(job, HardwareThreads())](int64_t ranks) { return CreateHostOps(options, ranks); },
      place);
}

void PrepareEnvironment(const Job& job) {
  if (job.runtime.device == DeviceType::kCuda) PrepareCudaJobEnvironment(job);
}

absl::StatusOr<Machine> PlanningMachine(const Job& job, int64_t hardware_threads) {
  if (job.runtime.device == DeviceType::kCpu) return CpuPlanningMachine(job, hardware_threads);
  return CudaPlanningMachine(
      job, [options = CpuOptionsOf(job, hardware_threads)](int64_t ranks) { return CreateHostOps(options, ranks); },
      hardware_threads);
}

absl::StatusOr<std::string> DecideCpuProducts(Job& job) { return DecideCpuJobProducts(job, UserCacheFolder()); }

}  // namespace shale
