// GPUs for the benches: what the engine's own backend for CUDA makes of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/runtime/backend.h"
#include "tools/bench_comm.h"
#include "tools/bench_ops_machine.h"

namespace shale {

struct GpuBackendOptions {
  int ranks = 1;
  int ranks_per_device = 1;
  bool nccl = false;         // Collectives by NCCL; else in process.
  std::string tuning_table;  // Of matrix products; empty: none.
};
using CreateGpuBackend = std::function<absl::StatusOr<std::unique_ptr<Backend>>(const GpuBackendOptions&)>;

// "cuda": the first GPU.
OpsMachineKind GpuOps(CreateGpuBackend create);

// "cuda": ranks that meet in the process; "nccl".
std::vector<CommKind> GpuComms(CreateGpuBackend create);

// As a job does, by CreateBackend of engine/backends.
absl::StatusOr<std::unique_ptr<Backend>> CreateJobGpuBackend(const GpuBackendOptions& options);

}  // namespace shale
