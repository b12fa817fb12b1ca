// The CUDA runtime of this process, linked statically: a program with it starts where there is no driver.
#pragma once

#include <memory>

#include "kernels/device/cuda/runtime.h"

namespace shale {

// Calls nothing yet: whether there is a driver and a GPU shows at the first call. Asks for all kernels to be loaded
// then (CUDA_MODULE_LOADING=EAGER, unless the environment has its own), because loading one later waits for the device,
// and that for a collective whose peers wait for us; and for as many queues as a GPU has, that streams do not share one
// (CUDA_DEVICE_MAX_CONNECTIONS=32, likewise). Sets environment variables: call it before there are threads.
std::unique_ptr<CudaRuntime> CreateCudart();

}  // namespace shale
