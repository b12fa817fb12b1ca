// Registers the GPU twice in the conformance suite of ops. "gpu" places the operands next to each other in one arena,
// as a training step does; red zones show accesses outside of them. "gpu_apart" gives each operand its own allocation,
// where compute-sanitizer shows such accesses. Both must produce the same bits.
#include "tests/gpu/gpu.h"
#include "tests/kernels/cuda_test_backend.h"

namespace shale::testing {
namespace {

bool Register(const char* name, Placement placement) {
  return RegisterTestBackend(CudaTestBackend({.name = name,
                                              .placement = placement,
                                              .runtime = []() -> CudaRuntime& { return *Gpu(); },
                                              .create_matmuls = [] { return CreateGpuMatMuls(); },
                                              .keeps_nans = false}));
}

[[maybe_unused]] const bool registered =
    Register("gpu", Placement::kTogether) && Register("gpu_apart", Placement::kApart);

}  // namespace
}  // namespace shale::testing
