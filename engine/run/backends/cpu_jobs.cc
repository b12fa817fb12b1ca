// Jobs with runtime.device CPU.
#include "engine/run/backends/cpu_backend.h"
#include "engine/run/backends/device_kind.h"
#include "kernels/hardware_threads.h"

namespace shale {
namespace {

CpuBackendOptions CpuOptionsOf(const Job& job, int64_t hardware_threads) {
  return {.ops = job.runtime.ops,
          .products = job.runtime.cpu_products,
          .threads = [runtime = job.runtime, hardware_threads](int64_t ranks) {
            return ThreadsPerRank(runtime, ranks, hardware_threads);
          }};
}

HostOpsFactory CpuOpsOf(const Job& job, int64_t hardware_threads) {
  return [options = CpuOptionsOf(job, hardware_threads)](int64_t ranks) { return CreateHostOps(options, ranks); };
}

absl::StatusOr<std::unique_ptr<Backend>> CreateOnCpu(const Job& job, HostOpsFactory, const BackendPlace&) {
  return CreateCpuBackend(CpuOptionsOf(job, HardwareThreads()));
}

absl::StatusOr<Machine> CpuMachineOf(const Job& job, HostOpsFactory, int64_t hardware_threads,
                                     const proto::MachineProfile*) {
  return PlanningMachineOf(CreateCpuBackend(CpuOptionsOf(job, hardware_threads)), hardware_threads);
}

}  // namespace

const DeviceKind& CpuDevice() {
  static constexpr DeviceKind kind = {.host_ops = CpuOpsOf,
                                      .create = CreateOnCpu,
                                      .prepare_environment = [](const Job&) {},
                                      .planning_machine = CpuMachineOf};
  return kind;
}

}  // namespace shale
