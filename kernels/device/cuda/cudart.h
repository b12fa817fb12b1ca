// CreateCudart: the CUDA runtime. It is linked statically, so that a program that uses it also starts on a machine
// without a driver.
#pragma once

#include <memory>

#include "kernels/device/cuda/runtime.h"

namespace shale {

// Creates a CudaRuntime that calls CUDA. Makes no call itself: the first call shows whether there is a driver and a
// GPU. Calls SetCudaEnvironment.
std::unique_ptr<CudaRuntime> CreateCudart();

// Sets two environment variables that CUDA reads when it starts, unless they are set already. Call it before there are
// threads; a later call changes nothing.
// - CUDA_MODULE_LOADING=EAGER loads all kernels at the first call. Loading a kernel later waits for the device, which
//   may wait for a collective whose peers wait for this rank.
// - CUDA_DEVICE_MAX_CONNECTIONS=32 asks for as many queues as a GPU has, so that streams do not share one.
void SetCudaEnvironment();

}  // namespace shale
