// Tests ranks that share a GPU, on a stand-in for CUDA: with memory that the host cannot access, and streams of another
// kind.
#include <vector>

#include "kernels/check.h"
#include "sharding/comm/stream_ordered.h"
#include "sharding/comm/sum_ranks.h"
#include "tests/kernels/cuda/host/host_view.h"
#include "tests/kernels/cuda/host/stream.h"
#include "tests/kernels/device/cuda/device_on_stand_in.h"
#include "tests/sharding/comm/communicator_conformance.h"

namespace shale {
namespace {

// Sums on the stream, in place of a kernel.
absl::Status SumOnStandIn(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                          Stream& stream) {
  SHALE_ASSIGN_OR_RETURN(CudaStream * cuda, CudaStream::From(stream));
  return cuda->Enqueue([&](cuda::StreamHandle handle) {
    std::vector<const std::byte*> from;
    for (const std::byte* input : inputs) {
      from.push_back(static_cast<const std::byte*>(cuda_on_host::HostViewOf(static_cast<const void*>(input))));
    }
    return static_cast<cuda_on_host::Stream*>(handle)->submit(
        [dtype, from = std::move(from), to = cuda_on_host::HostViewOf(out), elements] {
          SumRanks(dtype, from, to, elements);
          return absl::OkStatus();
        });
  });
}

Group CreateOnDevice(int size, Device& device) {
  // The device outlives the group.
  const std::shared_ptr<Device> borrowed(std::shared_ptr<void>(), &device);
  absl::StatusOr<Group> group = CreateStreamOrderedGroup(std::vector<std::shared_ptr<Device>>(size, borrowed),
                                                         {.sum_ranks = SumOnStandIn, .timeout_seconds = 0});
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

INSTANTIATE_TEST_SUITE_P(StreamOrderedOnCuda, CommunicatorConformance,
                         ::testing::Values(CommunicatorCase{
                             "OneGpu", [] { return std::make_unique<DeviceOnStandIn>(); }, CreateOnDevice}),
                         CaseName);

}  // namespace
}  // namespace shale
