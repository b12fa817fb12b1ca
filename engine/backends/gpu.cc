// Defines the functions of job_backend.h for programs that run on GPUs alone.
#include "engine/api/backend.h"
#include "engine/backends/cuda_jobs.h"
#include "engine/runtime/hardware_threads.h"
#include "kernels/check.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/update_ops.h"

namespace shale {

namespace {

absl::Status CheckDevice(const Job& job) {
  if (job.runtime.device == DeviceType::kCuda) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "runtime.device is CPU, and this program was built without CPU kernels; set runtime.device=CUDA, or use the "
      "program that has both");
}

// Returns what creates the ops of updates on the host, which are all that these programs compute there.
HostOpsFactory UpdateOpsOf(const Job& job, int64_t hardware_threads) {
  return [runtime = job.runtime, hardware_threads](int64_t ranks) {
    return CreateCpuUpdateOps(ThreadsPerRank(runtime, ranks, hardware_threads));
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job) { return CreateBackendOfProcess(job, {}); }

absl::StatusOr<std::unique_ptr<Backend>> CreateBackendOfProcess(const Job& job, const BackendPlace& place) {
  SHALE_RETURN_IF_ERROR(CheckDevice(job));
  SHALE_RETURN_IF_ERROR(cpu::CheckInstructionSetLimit());
  return CreateCudaJobBackend(job, UpdateOpsOf(job, HardwareThreads()), place);
}

void PrepareEnvironment(const Job& job) {
  if (job.runtime.device == DeviceType::kCuda) PrepareCudaJobEnvironment(job);
}

absl::StatusOr<Machine> PlanningMachine(const Job& job, int64_t hardware_threads) {
  SHALE_RETURN_IF_ERROR(CheckDevice(job));
  SHALE_RETURN_IF_ERROR(cpu::CheckInstructionSetLimit());
  return CudaPlanningMachine(job, UpdateOpsOf(job, hardware_threads), hardware_threads);
}

absl::StatusOr<std::string> DecideCpuProducts(Job&) { return ""; }

}  // namespace shale
