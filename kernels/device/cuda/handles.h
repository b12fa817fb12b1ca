// CUDA's handles as plain pointers, so that code that only passes them on need not include CUDA's headers.
#pragma once

namespace shale::cuda {

// A cudaStream_t. If kernels run on the host, a cuda_on_host::Stream* or null.
using StreamHandle = void*;
// A cudaEvent_t.
using EventHandle = void*;
// A captured graph that can be launched, and a piece of its work. Only the CudaRuntime that made them knows what they
// point to.
using GraphHandle = void*;
using NodeHandle = void*;

}  // namespace shale::cuda
