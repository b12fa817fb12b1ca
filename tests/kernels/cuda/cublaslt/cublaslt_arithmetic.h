// What the stand-in for cuBLASLt computes, in plain loops, from descriptors alone.
#pragma once

#include <cstdint>

#include "tests/kernels/cuda/cublaslt/cublaslt_stand_in.h"

namespace shale::testing {

// Returns whether a matrix has elements in fp8.
bool HasFloat8(const LtLayout& layout);
uint64_t ElementBytes(const LtLayout& layout);

// Computes D = alpha op(A) op(B) + beta C + the bias of each row, each element of A and B times its scale. Overwrites
// all of the workspace. REQUIRES: the host can read and write all pointers of the call.
void Compute(const LtCall& call);

}  // namespace shale::testing
