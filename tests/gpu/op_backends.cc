// The GPU in the conformance suite of ops, twice: operands beside one another in an arena, as in a training step,
// where red zones show what leaves them; and each in an allocation of its own, where compute-sanitizer does. Both must
// have the same bits.
#include "tests/gpu/gpu.h"
#include "tests/kernels/cuda_test_backend.h"

namespace shale::testing {
namespace {

bool Register(const char* name, Placement placement) {
  return RegisterTestBackend(CudaTestBackend({.name = name,
                                              .placement = placement,
                                              .runtime = []() -> CudaRuntime& { return *Gpu(); },
                                              .create_products = [] { return CreateGpuProducts(); },
                                              .keeps_nans = false}));
}

[[maybe_unused]] const bool registered =
    Register("gpu", Placement::kTogether) && Register("gpu_apart", Placement::kApart);

}  // namespace
}  // namespace shale::testing
