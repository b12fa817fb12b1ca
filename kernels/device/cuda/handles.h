// CUDA's handles, so that nothing but cudart.cc includes CUDA's headers for their sake.
#pragma once

namespace shale::cuda {

// A cudaStream_t; for kernels on the host, a cuda_on_host::Stream* or null.
using StreamHandle = void*;
// A cudaEvent_t.
using EventHandle = void*;
// A captured graph, ready to be launched, and a piece of its work. CudaRuntime's own.
using GraphHandle = void*;
using NodeHandle = void*;

}  // namespace shale::cuda
