// Which ops a GPU can compute. Builds without a CUDA toolkit.
#pragma once

#include "absl/status/status.h"
#include "kernels/op.h"

namespace shale::cuda {

// The compute capability of a GPU: 9 and 0 for Hopper. If `major` is 0 it is not known, and taken for a new one.
struct ComputeCapability {
  int major = 0, minor = 0;
};

// Implements Ops::CheckAvailable for a GPU.
absl::Status CheckAvailableOn(const ComputeCapability& gpu, const Op& op);

}  // namespace shale::cuda
