#include "tests/kernels/cuda/cudnn/attention_on_device.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "tests/kernels/cuda/cudnn/random_attention.h"
#include "tests/kernels/op_conformance.h"

namespace shale::testing {
namespace {

using cuda::AttentionBackend;

constexpr int64_t kCanaryBytes = 256;

void Check(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

// Runs `op` on a copy of `memory` on the device; the image afterwards.
template <class OpType>
std::vector<std::byte> RunOn(CudaDevice& device, Stream& stream, AttentionBackend& backend, const TestMemory& memory,
                             const OpType& op) {
  std::vector<std::byte> image = memory.image();
  const int64_t bytes = std::ssize(image), scratch_bytes = backend.ScratchBytes(op);
  const int64_t guarded_bytes = scratch_bytes + kCanaryBytes;
  std::unique_ptr<Arena> arena = *device.Allocate(bytes), scratch = *device.Allocate(guarded_bytes);
  std::unique_ptr<Arena> staging = *device.AllocatePinned(bytes), filled = *device.AllocatePinned(guarded_bytes);
  std::memcpy(staging->base(), image.data(), image.size());
  std::memset(filled->base(), 0xFF, guarded_bytes);  // NaNs: what is read before it is written shows.
  Check(backend.Prepare(op));
  Check(stream.Copy(arena->base(), staging->base(), bytes));
  Check(stream.Copy(scratch->base(), filled->base(), guarded_bytes));
  const auto bound = std::get<OpType>(memory.Bind(Op(op), arena->base()));
  EXPECT_TRUE(backend.Takes(bound));
  Check((*CudaStream::From(stream))->Enqueue([&](cuda::StreamHandle handle) {
    return backend.Enqueue(bound, {scratch->base(), scratch_bytes}, handle);
  }));
  Check(stream.Copy(staging->base(), arena->base(), bytes));
  Check(stream.Copy(filled->base(), scratch->base(), guarded_bytes));
  Check(stream.Synchronize());
  for (int64_t i = scratch_bytes; i < guarded_bytes; ++i) EXPECT_EQ(filled->base()[i], std::byte{0xFF}) << i;
  std::memcpy(image.data(), staging->base(), image.size());
  return image;
}

// Of outputs, |got - want| in the Euclidean norm, by |want|; all else must not have changed.
template <class OpType>
void ExpectNear(const TestMemory& memory, const OpType& op, std::vector<std::byte> got, std::vector<std::byte> want,
                double tolerance) {
  OpType::Visit(op, [&](absl::string_view name, const Tensor& t, Access access) {
    if (access == Access::kRead) return;
    const Tensor got_t = memory.Bind(t, got.data()), want_t = memory.Bind(t, want.data());
    double difference = 0, size = 0;
    for (int64_t i = 0; i < t.elements(); ++i) {
      difference += std::pow(ElementOf(got_t, i) - ElementOf(want_t, i), 2);
      size += std::pow(ElementOf(want_t, i), 2);
      SetElement(got_t, i, ElementOf(want_t, i));
    }
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(size)) << std::string(name.data(), name.size());
  });
  EXPECT_TRUE(got == want) << "bytes changed that are no output's";
}

// The tiles of kernels are of 64 and 128.
const AttentionShape kShapes[] = {
    {.batch = 1, .length = 4, .heads = 1, .groups = 1, .width = 64},
    {.batch = 2, .length = 132, .heads = 4, .groups = 2, .width = 64, .gap = 8},
    {.batch = 2, .length = 68, .heads = 3, .groups = 3, .width = 128},
    {.batch = 1, .length = 196, .heads = 2, .groups = 1, .width = 128, .window = 17},
    {.batch = 3, .length = 128, .heads = 2, .groups = 1, .width = 96},
    {.batch = 1, .length = 200, .heads = 2, .groups = 2, .width = 96, .window = 130},
};

TEST_P(AttentionOnDeviceTest, IsTheReferenceWithinRoundingAndRepeatsItselfToTheBit) {
  // p, ds and results are rounded to bf16 one after the other, each by up to 2^-9 of itself.
  constexpr double kTolerance = 4 * 0x1p-9;
  for (const AttentionShape& shape : kShapes) {
    TestMemory memory;
    const AttentionBackward op = RandomAttention(memory, shape);
    const AttentionForward forward = ForwardOf(op);
    SCOPED_TRACE(cuda::AttentionKey::Of(op).ToString());
    std::vector<std::byte> got = RunOn(*device_, *stream_, Backend(), memory, forward);
    ExpectNear(memory, forward, got, RunOnReference(memory, forward), kTolerance);
    EXPECT_TRUE(RunOn(*device_, *stream_, Backend(), memory, forward) == got);

    const std::vector<std::byte> want = RunOnReference(memory, op);
    const int64_t whole = cuda::WorkspaceBytes(cuda::AttentionKey::Of(op));
    for (const int64_t workspace_bytes : {whole, whole / 2, int64_t{0}}) {
      SCOPED_TRACE(workspace_bytes);
      AttentionBackend& backend = Backend(workspace_bytes);
      got = RunOn(*device_, *stream_, backend, memory, op);
      ExpectNear(memory, op, got, want, kTolerance);
      EXPECT_TRUE(RunOn(*device_, *stream_, backend, memory, op) == got);
    }
    AttentionBackend& anew = Backend(/*workspace_bytes=*/0);
    EXPECT_TRUE(RunOn(*device_, *stream_, anew, memory, op) == got) << "graphs that are built again";
  }
}

}  // namespace

void AttentionOnDeviceTest::SetUp() {
  runtime_ = GetParam().create_runtime();
  const absl::StatusOr<int> gpus = runtime_->DeviceCount();
  if (!gpus.ok() || *gpus == 0) GTEST_SKIP() << "no GPU: " << gpus.status();
  device_ = *CudaDevice::Create(*runtime_, {});
  stream_ = *device_->CreateStream("compute");
  const absl::Status loaded = GetParam().load(device_->properties()).status();
  if (loaded.code() == absl::StatusCode::kNotFound) GTEST_SKIP() << loaded;
  ASSERT_TRUE(loaded.ok()) << loaded;
}

AttentionBackend& AttentionOnDeviceTest::Backend(int64_t workspace_bytes) {
  backend_ = cuda::CreateCudnnAttention([this] { return GetParam().load(device_->properties()); },
                                        {.workspace_bytes = workspace_bytes});
  return *backend_;
}

}  // namespace shale::testing
