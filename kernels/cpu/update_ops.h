// The ops that a job on GPUs runs on its host if its optimizer updates there (optimizer.device HOST).
#pragma once

#include <memory>

#include "kernels/op_backend.h"

namespace shale {

// Creates CPU ops that run Update, ops on flat vectors, and ops on a few scalars, to the same bits as those of
// CreateCpuOps (kernels/cpu/cpu_ops.h). They return Unimplemented for all other ops. A program that uses nothing else
// of kernels/cpu links no oneDNN. Each op uses `threads` threads, including the calling one. REQUIRES: threads >= 1,
// and CheckInstructionSetLimit() is OK (kernels/cpu/instruction_set.h).
std::unique_ptr<Ops> CreateCpuUpdateOps(int threads);

}  // namespace shale
