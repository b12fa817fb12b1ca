// Registers a backend that runs our CUDA kernels without a GPU. They are compiled as C++ and run on streams and in
// memory of a stand-in for CUDA's runtime, under the checks of tests/kernels/cuda/host, in another order of blocks and
// threads at each launch. What a kernel does wrong becomes the error of its stream. The reference computes the matmuls,
// which cuBLASLt computes on a GPU.
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/host/host_matmuls.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tests/kernels/cuda_test_backend.h"
#include "tests/kernels/second_order.h"

namespace shale::testing {
namespace {

CudaRuntime& Runtime() {
  static auto& runtime = *new cuda_on_host::StandInRuntime(TestedOrder());
  return runtime;
}

[[maybe_unused]] const bool cuda_on_host_backend_registered =
    RegisterTestBackend(CudaTestBackend({.name = "cuda_on_host", .runtime = Runtime, .create_matmuls = [] {
                                           return *cuda_on_host::CreateHostMatMuls(CreateReferenceOps());
                                         }}));

}  // namespace
}  // namespace shale::testing
