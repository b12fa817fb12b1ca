// Registers the CUDA backend with matmuls by cuBLASLt, where both CUDA and cuBLASLt are stand-ins. Linking this file
// into a conformance test adds the backend.
#include "kernels/cuda/cublaslt/cublaslt_matmuls.h"
#include "tests/kernels/cuda/cublaslt/cublaslt_stand_in.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tests/kernels/cuda_test_backend.h"

namespace shale::testing {
namespace {

CudaRuntime& Runtime() {
  static auto& runtime = *new cuda_on_host::StandInRuntime;
  return runtime;
}

std::unique_ptr<cuda::MatMulBackend> CreateMatMuls() {
  // Every matmul is computed by a proposal that follows some that cannot be used.
  static auto& library = *[] {
    auto* made = new CublasLtStandIn;
    made->algorithms = 5;
    made->unusable = made->refused = made->oversized = 1;
    return made;
  }();
  return cuda::CreateCublasLtMatMuls([] { return library.functions(); }, {.workspace_bytes = 4096});
}

[[maybe_unused]] const bool registered = RegisterTestBackend(CudaTestBackend({.name = "cublaslt_stand_in",
                                                                              .placement = Placement::kTogether,
                                                                              .runtime = Runtime,
                                                                              .create_matmuls = CreateMatMuls}));

}  // namespace
}  // namespace shale::testing
