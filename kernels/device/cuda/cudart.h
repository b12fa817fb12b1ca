// The CUDA runtime of this process, linked statically: a program with it starts where there is no driver.
#pragma once

#include <memory>

#include "kernels/device/cuda/runtime.h"

namespace shale {

// Calls nothing yet: whether there is a driver and a GPU shows at the first call.
std::unique_ptr<CudaRuntime> CreateCudart();

}  // namespace shale
