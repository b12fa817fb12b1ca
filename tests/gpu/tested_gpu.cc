// The backend for the laws of training steps on a GPU. All ranks share one GPU. It uses our kernels, cuBLASLt, cuDNN if
// the build has it, and collectives that copy and sum in rank order.
#include <utility>

#include "engine/run/backends/cuda_backend.h"
#include "kernels/cpu/update_ops.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "kernels/cuda/cudnn/cudnn_graphs.h"
#include "tests/engine/reference_backend.h"
#include "tests/engine/tested_backend.h"
#include "tests/gpu/gpu.h"

namespace shale::testing {
namespace {

constexpr int kRanksPerDevice = 8;
// The workspace is small because matmuls are small here, and because a test inspects the whole arena around each
// instruction.
constexpr int64_t kWorkspaceBytes = int64_t{64} << 10;

}  // namespace

// kReference is the same on every machine. Ignores `cpu_matmuls`, which matter only on the CPU.
std::unique_ptr<Backend> TestedBackend(OpsKind ops, int threads, CpuMatMuls cpu_matmuls) {
  if (ops == OpsKind::kReference) return CreateReferenceBackend();
  CudaBackendOptions options;
  options.ranks_per_device = kRanksPerDevice;
  options.create_matmuls = [](const CudaDeviceProperties*) { return CreateGpuMatMuls(kWorkspaceBytes); };
  if (cuda::BuiltWithCudnn().ok()) {
    options.create_attention = [](const CudaDeviceProperties*) { return cuda::CreateCudnnAttention(LoadGpuCudnn); };
  }
  options.create_host_ops = [threads](int64_t /*ranks*/) { return CreateCpuUpdateOps(threads); };
  return CreateCudaBackend(Gpu(), std::move(options));
}

bool TestsTheCudaBackend() { return true; }

// Every combination is tested on the CPU, and takes a quarter of an hour on an H100.
bool TestsEveryCombination() { return false; }

}  // namespace shale::testing
