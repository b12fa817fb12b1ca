// The CPU backend: streams are threads, and ranks communicate through shared memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/run/runtime/backend.h"
#include "kernels/cpu_matmuls.h"

namespace shale {

struct CpuBackendOptions {
  OpsKind ops = OpsKind::kFast;
  CpuMatMuls cpu_matmuls = CpuMatMuls::kAuto;  // Of the fast ops; kAuto: DefaultCpuMatMuls (kernels/cpu/cpu_ops.h).
  // Returns how many threads one rank uses when the process runs this many ranks: for its kernels, and to make an
  // arena's pages resident. Must be set.
  std::function<int(int64_t ranks)> threads = [](int64_t) { return 1; };
};

std::unique_ptr<Backend> CreateCpuBackend(const CpuBackendOptions& options = {});

// Creates the ops with which one of `ranks` ranks computes on the CPU, on any kind of device (Ops::host).
std::unique_ptr<Ops> CreateHostOps(const CpuBackendOptions& options, int64_t ranks);

}  // namespace shale
