#include "kernels/device/cuda/cudart.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/cuda/cuda_device.h"

namespace {

// Stand-ins for calls that need a GPU; the linker puts them in the place of CUDA's own (--wrap). One graph, with one
// node, whose edge to the next one is programmatic.
struct Calls {
  unsigned long long instantiate_flags = 0;
  int graph = 0, launchable = 0, node = 0;
  cudaGraphNode_t nodes[1] = {reinterpret_cast<cudaGraphNode_t>(&node)};
  cudaGraphEdgeData edges[1] = {
      {.from_port = cudaGraphKernelNodePortProgrammatic, .type = cudaGraphDependencyTypeProgrammatic}};
} calls;

}  // namespace

extern "C" {
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(&calls.graph);
  return cudaSuccess;
}
cudaError_t __wrap_cudaGraphInstantiate(cudaGraphExec_t* launchable, cudaGraph_t, unsigned long long flags) {
  *launchable = reinterpret_cast<cudaGraphExec_t>(&calls.launchable);
  calls.instantiate_flags = flags;
  return cudaSuccess;
}
cudaError_t __wrap_cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t __wrap_cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t __wrap_cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t __wrap_cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*,
                                            cudaGraph_t*, const cudaGraphNode_t** nodes,
                                            const cudaGraphEdgeData** edges, size_t* count) {
  *status = cudaStreamCaptureStatusActive;
  if (edges == nullptr) return cudaErrorLossyQuery;  // As cuda_runtime_api.h says.
  *nodes = calls.nodes;
  *edges = calls.edges;
  *count = 1;
  return cudaSuccess;
}
}

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CudartTest, AsksForAllKernelsAtOnceAndForEveryQueueUnlessToldOtherwise) {
  unsetenv("CUDA_MODULE_LOADING");
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", /*overwrite=*/1);
  (void)CreateCudart();
  EXPECT_STREQ(getenv("CUDA_MODULE_LOADING"), "EAGER");
  EXPECT_STREQ(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "4");
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  (void)CreateCudart();
  EXPECT_STREQ(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

TEST(CudartTest, WithoutADriverADeviceIsRefusedWithWhatIsMissingAndWhatToDo) {
  std::unique_ptr<CudaRuntime> runtime = CreateCudart();
  if (runtime->DeviceCount().ok()) GTEST_SKIP() << "this machine has a driver";
  const absl::Status error = CudaDevice::Create(*runtime, {}).status();
  EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition) << error;
  EXPECT_THAT(std::string(error.message()),
              AllOf(HasSubstr("cudaGetDeviceCount: "), HasSubstr("wanted an NVIDIA GPU and a driver for CUDA "),
                    HasSubstr("nvidia-smi"), HasSubstr("run on the CPU")));
  EXPECT_EQ(runtime->Malloc(16).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Graphs once gave all kernels the priority of the stream on which they were launched, so that collectives waited for
// matmuls.
TEST(CudartTest, KernelsOfAGraphKeepThePriorityOfTheirStream) {
  const std::unique_ptr<CudaRuntime> runtime = CreateCudart();
  const absl::StatusOr<cuda::GraphHandle> graph = runtime->EndCapture(nullptr);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(calls.instantiate_flags, cudaGraphInstantiateFlagUseNodePriority);
  EXPECT_TRUE(runtime->DestroyGraph(*graph).ok());
}

// CUDA refuses to name the last work of a stream to those who do not ask how the next work depends on it, if that is
// not the usual way. Libraries launch kernels that begin before the end of the one before them.
TEST(CudartTest, ACaptureMayHoldProgrammaticEdges) {
  const absl::StatusOr<cuda::NodeHandle> node = CreateCudart()->LastCaptured(nullptr);
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(*node, calls.nodes[0]);
}

}  // namespace
}  // namespace shale
