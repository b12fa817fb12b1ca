// Lets the benches of ops and of collectives run on GPUs, through the engine's CUDA backend.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/backend.h"
#include "engine/cluster/launch/joined_processes.h"
#include "engine/run/runtime/backend.h"
#include "tools/bench/comm.h"
#include "tools/bench/ops_machine.h"

namespace shale {

struct GpuBackendOptions {
  int ranks = 1;
  int ranks_per_device = 1;
  bool nccl = false;           // Whether NCCL runs the collectives. Otherwise the in-process communicator does.
  BackendPlace place;          // Of this process, if there are several, of which each has one rank.
  std::string tuning_table;    // File with tuned matmul algorithms; empty for none.
  bool own_attention = false;  // Whether the engine's own kernels compute attention where cuDNN could.
};
using CreateGpuBackend = std::function<absl::StatusOr<std::unique_ptr<Backend>>(const GpuBackendOptions&)>;

// Returns the kind "cuda": ops on the first GPU.
OpsMachineKind GpuOps(CreateGpuBackend create);

// Returns the kinds "cuda" (ranks of this process without NCCL, which may share GPUs) and "nccl" (one rank per GPU). If
// `joined` joins several processes, each has a rank of the only kind "nccl", and these may share GPUs. Borrows
// `joined`, which may be null.
std::vector<CommKind> GpuComms(CreateGpuBackend create, JoinedProcesses* joined = nullptr);

// Creates the backend as a job does, with CreateBackendOfProcess of engine/run/backends.
absl::StatusOr<std::unique_ptr<Backend>> CreateJobGpuBackend(const GpuBackendOptions& options);

}  // namespace shale
