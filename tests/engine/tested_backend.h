// The backend on which the laws of training steps are tested. Each test links one implementation of this header, so
// every backend has a test of the same laws.
#pragma once

#include <memory>

#include "engine/run/runtime/backend.h"
#include "kernels/cpu_matmuls.h"

namespace shale::testing {

// Creates the backend. `threads` is the number of threads of a rank's kernels, on backends that have a choice. `ops`
// selects the kernels; on CUDA it selects those that compute matmuls. `cpu_matmuls` selects what computes matmuls among
// the fast ops; it may be kAuto.
std::unique_ptr<Backend> TestedBackend(OpsKind ops, int threads, CpuMatMuls cpu_matmuls = CpuMatMuls::kAuto);

// Returns whether jobs must ask for device CUDA to run on the backend.
bool TestsTheCudaBackend();

// Returns whether tests run every combination of settings on the backend, or every second one where that takes long.
// Otherwise they run one of each kind.
bool TestsEveryCombination();

}  // namespace shale::testing
