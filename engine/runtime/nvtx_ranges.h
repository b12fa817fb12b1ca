// Ranges in NVIDIA's Tools Extension (NVTX 3), which Nsight Systems and other profilers read:
// https://nvidia.github.io/NVTX/doxygen/index.html
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/runtime/profiler_ranges.h"

namespace shale {

// Returns whether a profiler that started this process wants ranges. NVTX finds such a profiler by the environment
// variable NVTX_INJECTION64_PATH.
bool ProfilerWantsNvtxRanges();

// Creates ranges whose lanes are NVTX domains. Without a profiler they cost a few nanoseconds each. Returns
// Unimplemented if the program was built without a CUDA toolkit, which has the headers.
absl::StatusOr<std::unique_ptr<ProfilerRanges>> CreateNvtxRanges();

}  // namespace shale
