#include "engine/backends/cpu_jobs.h"

#include "engine/config/job.h"
#include "engine/runtime/hardware_threads.h"
#include "kernels/check.h"
#include "kernels/cpu/instruction_set.h"

namespace shale {

CpuBackendOptions CpuOptionsOf(const Job& job, int64_t hardware_threads) {
  return {.ops = job.runtime.ops,
          .products = job.runtime.cpu_products,
          .threads = [runtime = job.runtime, hardware_threads](int64_t ranks) {
            return ThreadsPerRank(runtime, ranks, hardware_threads);
          }};
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuJobBackend(const Job& job) {
  SHALE_RETURN_IF_ERROR(cpu::CheckInstructionSetLimit());
  return CreateCpuBackend(CpuOptionsOf(job, HardwareThreads()));
}

absl::StatusOr<Machine> CpuPlanningMachine(const Job& job, int64_t hardware_threads) {
  SHALE_RETURN_IF_ERROR(cpu::CheckInstructionSetLimit());
  return PlanningMachineOf(CreateCpuBackend(CpuOptionsOf(job, hardware_threads)), hardware_threads);
}

}  // namespace shale
