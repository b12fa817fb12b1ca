// Training steps on the GPU, all ranks on one: our kernels, cuBLASLt, cuDNN where the build has it, and collectives by
// copies and ordered sums.
#include <utility>

#include "engine/runtime/cuda_backend.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "kernels/cuda/cudnn/cudnn_graphs.h"
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
  CudaBackendOptions options;
  options.ranks_per_device = kRanksPerDevice;
  options.create_products = [](const CudaDeviceProperties*) { return CreateGpuProducts(kWorkspaceBytes); };
  if (cuda::BuiltWithCudnn().ok()) {
    options.create_attention = [](const CudaDeviceProperties*) { return cuda::CreateCudnnAttention(LoadGpuCudnn); };
  }
  return CreateCudaBackend(Gpu(), std::move(options));
}

bool TestsEveryCombination() { return true; }

}  // namespace shale::testing
