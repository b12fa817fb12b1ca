// The CUDA backend without a GPU. Shale's kernels run as C++, streams are threads, device memory cannot be accessed by
// the host, and all ranks share one device. The CPU ops compute matmuls, and the reference computes the attention that
// cuDNN would compute; if SHALE_HOST_ATTENTION is set, the reference computes all attention but that with a cache.
#include <cstdlib>

#include "engine/run/backends/cuda_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/update_ops.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "kernels/reference/reference_ops.h"
#include "tests/engine/tested_backend.h"
#include "tests/kernels/cuda/cudnn/attention_stand_in.h"
#include "tests/kernels/cuda/host/host_attention.h"
#include "tests/kernels/cuda/host/host_matmuls.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tests/kernels/second_order.h"

namespace shale::testing {
namespace {

constexpr int kRanksPerDevice = 64;

// After the last user has finished, checks that nothing was misused or left allocated.
void CheckAndDelete(cuda_on_host::StandInRuntime* runtime) {
  EXPECT_THAT(runtime->misuse(), ::testing::IsEmpty());
  EXPECT_TRUE(runtime->CheckAllReleased().ok()) << runtime->CheckAllReleased();
  delete runtime;
}

std::unique_ptr<Ops> CpuOpsOf(OpsKind kind, int threads, CpuMatMuls cpu_matmuls) {
  return kind == OpsKind::kReference ? CreateReferenceOps()
                                     : CreateCpuOps({.threads = threads, .cpu_matmuls = cpu_matmuls});
}

}  // namespace

std::unique_ptr<Backend> TestedBackend(OpsKind ops, int threads, CpuMatMuls cpu_matmuls) {
  cuda_on_host::StandInOptions gpu = TestedOrder();
  gpu.memory_bytes = int64_t{4} << 30;  // The backend leaves 2 GiB to CUDA and its libraries.
  return CreateCudaBackend(
      std::shared_ptr<cuda_on_host::StandInRuntime>(new cuda_on_host::StandInRuntime(gpu), CheckAndDelete),
      {.ranks_per_device = kRanksPerDevice,
       .create_matmuls =
           [=](const CudaDeviceProperties* /*gpu*/) {
             return *cuda_on_host::CreateHostMatMuls(CpuOpsOf(ops, threads, cpu_matmuls));
           },
       .create_attention =
           [](const CudaDeviceProperties* /*gpu*/) {
             std::unique_ptr<cuda::AttentionBackend> cudnn = cuda::CreateCudnnAttention(
                 [library = std::make_shared<AttentionStandIn>()] { return library->Graphs(); });
             const bool on_host = std::getenv("SHALE_HOST_ATTENTION") != nullptr;
             return on_host ? cuda_on_host::CreateHostAttention(std::move(cudnn)) : std::move(cudnn);
           },
       .create_host_ops =
           [=](int64_t /*ranks*/) {
             return ops == OpsKind::kReference ? CreateReferenceOps() : CreateCpuUpdateOps(threads);
           }});
}

bool TestsTheCudaBackend() { return true; }

bool TestsEveryCombination() { return false; }

}  // namespace shale::testing
