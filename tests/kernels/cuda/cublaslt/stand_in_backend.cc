// The CUDA backend with products by cuBLASLt, where both CUDA and cuBLASLt are stand-ins: linked into a conformance
// test, it is one backend more.
#include <memory>

#include "kernels/cuda/cublaslt/cublaslt_products.h"
#include "kernels/cuda/cuda_ops.h"
#include "tests/kernels/cuda/cublaslt/cublaslt_stand_in.h"
#include "tests/kernels/device/cuda/device_on_stand_in.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

std::unique_ptr<Ops> CreateOpsOnStandIn() {
  static CublasLtStandIn& library = *new CublasLtStandIn;
  return CreateCudaOps(
      {.products = cuda::CreateCublasLtProducts([] { return library.functions(); }, {.workspace_bytes = 4096})});
}

[[maybe_unused]] const bool registered = RegisterTestBackend(
    {.name = "cublaslt_stand_in",
     .family = "cublaslt",
     .create_device = []() -> std::unique_ptr<Device> { return std::make_unique<DeviceOnStandIn>(); },
     .create_ops = CreateOpsOnStandIn,
     .reports_bad_indices = false});

}  // namespace
}  // namespace shale::testing
