// Tests the communicator of ranks that share one GPU: copies, and sums in rank order, on their streams.
#include <vector>

#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/cuda/kernels.h"
#include "sharding/comm/stream_ordered.h"
#include "tests/gpu/gpu.h"
#include "tests/sharding/comm/communicator_conformance.h"

namespace shale::testing {
namespace {

absl::Status SumOnGpu(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                      Stream& stream) {
  SHALE_ASSIGN_OR_RETURN(CudaStream * cuda_stream, CudaStream::From(stream));
  return cuda_stream->Enqueue(
      [&](cuda::StreamHandle handle) { return cuda::SumRanks(dtype, inputs, out, elements, handle); });
}

Group Create(int size, Device& device) {
  // A shared_ptr without ownership; the device outlives the group.
  const std::shared_ptr<Device> borrowed(std::shared_ptr<void>(), &device);
  absl::StatusOr<Group> group =
      CreateStreamOrderedGroup(std::vector<std::shared_ptr<Device>>(size, borrowed), {.sum_ranks = SumOnGpu});
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

INSTANTIATE_TEST_SUITE_P(StreamOrdered, CommunicatorConformance,
                         ::testing::Values(CommunicatorCase{"OneGpu", [] { return CreateGpuDevice(); }, Create}),
                         CaseName);

TEST(StreamOrderedOnGpu, SumsAreFormedInRankOrder) {
  const std::unique_ptr<CudaDevice> device = CreateGpuDevice();
  Group group = Create(4, *device);
  ExpectSumsInRankOrder(group, *device, 1'000'003);
}

}  // namespace
}  // namespace shale::testing
