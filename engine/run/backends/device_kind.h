// DeviceKind: a kind of device on which jobs run. A program is linked with one or both: see BUILD.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/api/backend.h"
#include "engine/plan/config/job.h"
#include "engine/run/runtime/backend.h"
#include "kernels/op_backend.h"

namespace shale {

// Creates the ops of one of `ranks` ranks on the CPU, for updates on the host.
using HostOpsFactory = std::function<std::unique_ptr<Ops>(int64_t ranks)>;

struct DeviceKind {
  // Returns what creates the ops of updates on the host, on CPUs that run `hardware_threads` threads at once. It does
  // not refer to the job.
  HostOpsFactory (*host_ops)(const Job& job, int64_t hardware_threads);

  // Null for devices that the program only plans for. Creates the backend that `job` describes, for a process at
  // `place`, whose store must outlive it. The backend does not refer to the job.
  absl::StatusOr<std::unique_ptr<Backend>> (*create)(const Job& job, HostOpsFactory host_ops,
                                                     const BackendPlace& place);

  // See PrepareEnvironment and PlanningMachine (engine/api/backend.h). `profile`: as in PlanningMachineOfProfile, or
  // null.
  void (*prepare_environment)(const Job& job);
  absl::StatusOr<Machine> (*planning_machine)(const Job& job, HostOpsFactory host_ops, int64_t hardware_threads,
                                              const proto::MachineProfile* profile);

  // Null for GPUs. See DecideCpuMatMuls (engine/api/backend.h). Makes `cache_folder` if it is missing. It gets a file
  // for each kind of processor and dtype, which holds the name of the choice. An empty name stands for a folder that
  // cannot be written.
  absl::StatusOr<std::string> (*decide_cpu_matmuls)(Job& job, const std::string& cache_folder);
};

// CPUs: all ops, and collectives in process.
const DeviceKind& CpuDevice();

// GPUs through the CUDA runtime: matmuls by cuBLASLt, attention by cuDNN or by the engine's own kernels, collectives by
// NCCL or in process. The libraries are loaded when they are first needed, from the places where
// kernels/device/cuda/shared_library.h searches. Of the CPU's ops only updates are linked.
//
// `create` returns InvalidArgument if the tuning table cannot be read, if there are too many ranks for collectives
// without NCCL, or if only NCCL could join the processes and the job excludes it. It calls `prepare_environment`.
const DeviceKind& CudaDevice();

}  // namespace shale
