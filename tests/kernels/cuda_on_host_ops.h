// Our CUDA kernels as a backend of the conformance suite that needs no GPU.
#pragma once

#include <memory>

#include "kernels/op_backend.h"

namespace shale::testing {

// Runs every kernel on the thread of the CPU stream that it is launched on, under the checks of kernels/cuda/host, in
// another order of blocks and threads at each launch. What a kernel does wrong is the launch's error. Products, which
// cuBLASLt computes on a GPU, are the reference's.
std::unique_ptr<Ops> CreateCudaOnHostOps();

}  // namespace shale::testing
