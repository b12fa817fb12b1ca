// The fast CPU backend: Highway for ops that memory bounds, oneDNN or our own kernels for matmuls, and a team of
// threads (kernels/cpu/team.h) for all of them.
//
// The same op gives the same bits whatever the number of threads, because the partition of every reduction depends on
// sizes only.
#pragma once

#include <memory>

#include "kernels/cpu_matmuls.h"
#include "kernels/op_backend.h"

namespace shale {

struct CpuOptions {
  // Threads per op, including the calling thread. Ranks that share a machine should divide its cores.
  int threads = 1;
  CpuMatMuls cpu_matmuls = CpuMatMuls::kAuto;  // kAuto: DefaultCpuMatMuls().
};

// Returns what computes matmuls fastest on most processors with the instructions of this one: our own kernels with
// AVX2, and oneDNN with AVX-512 or without AVX2. Where the processor has bf16 instructions that are slow, only a
// measurement tells (kernels/cpu/measure_matmuls.h). Never returns kAuto. REQUIRES: CheckInstructionSetLimit() is OK.
CpuMatMuls DefaultCpuMatMuls();

// Creates the fast CPU backend for one rank. REQUIRES: options.threads >= 1, and CheckInstructionSetLimit() is OK
// (kernels/cpu/instruction_set.h).
std::unique_ptr<Ops> CreateCpuOps(const CpuOptions& options);

}  // namespace shale
