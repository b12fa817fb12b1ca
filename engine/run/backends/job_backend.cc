// Compiled once for each choice of devices, with SHALE_WITH_CPU or SHALE_WITH_CUDA or both (BUILD).
#include "absl/status/status.h"
#include "engine/api/backend.h"
#include "engine/files/io/file.h"
#include "engine/run/backends/cuda_planning.h"
#include "engine/run/backends/device_kind.h"
#include "kernels/check.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/hardware_threads.h"

namespace shale {
namespace {

// The kinds of device that the program was linked with. Null: without this one. Every program plans for GPUs.
struct LinkedDevices {
  const DeviceKind* cpu = nullptr;
  const DeviceKind* cuda = &PlannedCudaDevice();
};

LinkedDevices Linked() {
  LinkedDevices linked;
#ifdef SHALE_WITH_CPU
  linked.cpu = &CpuDevice();
#endif
#ifdef SHALE_WITH_CUDA
  linked.cuda = &CudaDevice();
#endif
  return linked;
}

// Says that the program lacks the device of a job.
absl::Status CannotRun(bool on_cpu) {
  return absl::FailedPreconditionError(
      on_cpu
          ? "runtime.device is CPU, and this program was built without CPU kernels; set runtime.device=CUDA, or use "
            "the program that has both"
          : "runtime.device is CUDA, and this program runs on CPUs alone: it is meant for CPUs, or there was no CUDA "
            "toolkit in $CUDA_HOME or /usr/local/cuda when it was built. Build it again with a toolkit, or set "
            "runtime.device=CPU");
}

// Returns the device of the job, on which it can at least be planned.
absl::StatusOr<const DeviceKind*> PlannedKindOf(const Job& job) {
  const bool on_cpu = job.runtime.device == DeviceType::kCpu;
  const DeviceKind* const kind = on_cpu ? Linked().cpu : Linked().cuda;
  if (kind != nullptr) return kind;
  return CannotRun(on_cpu);
}

// Returns the device of the job, on which it can run.
absl::StatusOr<const DeviceKind*> KindOf(const Job& job) {
  SHALE_ASSIGN_OR_RETURN(const DeviceKind* const kind, PlannedKindOf(job));
  if (kind->create != nullptr) return kind;
  return CannotRun(/*on_cpu=*/false);
}

// Returns the ops of updates on the host: those of the CPU's kernels if the program has them, otherwise those that come
// with the GPU's.
HostOpsFactory HostOpsOf(const Job& job, int64_t hardware_threads) {
  const LinkedDevices linked = Linked();
  return (linked.cpu != nullptr ? linked.cpu : linked.cuda)->host_ops(job, hardware_threads);
}

absl::StatusOr<Machine> MachineToPlanFor(const Job& job, int64_t hardware_threads,
                                         const proto::MachineProfile* profile) {
  SHALE_ASSIGN_OR_RETURN(const DeviceKind* const kind, PlannedKindOf(job));
  SHALE_RETURN_IF_ERROR(cpu::CheckInstructionSetLimit());
  return kind->planning_machine(job, HostOpsOf(job, hardware_threads), hardware_threads, profile);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job) { return CreateBackendOfProcess(job, {}); }

absl::StatusOr<std::unique_ptr<Backend>> CreateBackendOfProcess(const Job& job, const BackendPlace& place) {
  SHALE_ASSIGN_OR_RETURN(const DeviceKind* const kind, KindOf(job));
  SHALE_RETURN_IF_ERROR(cpu::CheckInstructionSetLimit());
  return kind->create(job, HostOpsOf(job, HardwareThreads()), place);
}

void PrepareEnvironment(const Job& job) {
  if (const absl::StatusOr<const DeviceKind*> kind = KindOf(job); kind.ok()) (*kind)->prepare_environment(job);
}

absl::StatusOr<Machine> PlanningMachine(const Job& job, int64_t hardware_threads) {
  return MachineToPlanFor(job, hardware_threads, /*profile=*/nullptr);
}

absl::StatusOr<Machine> PlanningMachineOfProfile(const Job& job, int64_t hardware_threads,
                                                 const proto::MachineProfile& profile) {
  return MachineToPlanFor(job, hardware_threads, &profile);
}

absl::StatusOr<std::string> DecideCpuMatMuls(Job& job) {
  const DeviceKind* const cpu = Linked().cpu;
  if (cpu == nullptr) return "";
  return cpu->decide_cpu_matmuls(job, UserCacheFolder());
}

}  // namespace shale
