// Training steps on the GPU, all ranks on one: our kernels, cuBLASLt, and collectives by copies and ordered sums.
#include "engine/runtime/cuda_backend.h"
#include "tests/engine/reference_backend.h"
#include "tests/engine/tested_backend.h"
#include "tests/gpu/gpu.h"

namespace shale::testing {
namespace {

constexpr int kRanksPerDevice = 8;
// Products are small here, and a test looks at the whole arena around each instruction.
constexpr int64_t kWorkspaceBytes = int64_t{64} << 10;

}  // namespace

// The reference is what it is on every machine; products of two threads are a matter of the CPU's.
std::unique_ptr<Backend> TestedBackend(OpsKind ops, int threads) {
  if (ops == OpsKind::kReference) return CreateReferenceBackend();
  return CreateCudaBackend(Gpu(), {.ranks_per_device = kRanksPerDevice,
                                   .create_products = [](const CudaDeviceProperties*) {
                                     return CreateGpuProducts(kWorkspaceBytes);
                                   }});
}

bool TestsEveryCombination() { return true; }

}  // namespace shale::testing
