// The fast CPU backend: Highway for ops that memory bounds, oneDNN for matmuls, OpenMP for loops over rows.
//
// The same op gives the same bits whatever the number of threads, because the partition of every reduction depends on
// sizes only.
#pragma once

#include <memory>

#include "kernels/op_backend.h"

namespace shale {

struct CpuOptions {
  // OpenMP threads per op, including the calling thread. Ranks that share a machine should divide its cores: OpenMP
  // threads spin while they wait, and block one another if there are more of them than cores.
  int threads = 1;
};

// Creates the fast CPU backend for one rank. REQUIRES: options.threads >= 1, and CheckInstructionSetLimit() is OK
// (kernels/cpu/instruction_set.h).
std::unique_ptr<Ops> CreateCpuOps(const CpuOptions& options);

}  // namespace shale
