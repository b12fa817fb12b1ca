// Attention in device memory and on streams: by cuDNN on a GPU (skipped where there is none), and, so that this file is
// known to find what it looks for, by what stands in for cuDNN on what stands in for a GPU.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "kernels/cuda/cudnn/cudnn_graphs.h"
#include "kernels/cuda/host/stand_in_runtime.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/cudart.h"
#include "tests/kernels/cuda/cudnn/attention_stand_in.h"
#include "tests/kernels/cuda/cudnn/random_attention.h"
#include "tests/kernels/op_conformance.h"

namespace shale::testing {
namespace {

using cuda::AttentionBackend;

class AttentionOnDeviceTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const bool gpu = GetParam();
    runtime_ = gpu ? CreateCudart() : std::make_unique<cuda_on_host::StandInRuntime>();
    const absl::StatusOr<int> gpus = runtime_->DeviceCount();
    if (!gpus.ok() || *gpus == 0) GTEST_SKIP() << "no GPU: " << gpus.status();
    device_ = *CudaDevice::Create(*runtime_, {});
    stream_ = *device_->CreateStream("compute");
    if (!gpu) return;
    const absl::Status loaded = cuda::LoadCudnn(Options()).status();
    if (!loaded.ok()) GTEST_SKIP() << loaded;
  }
  ~AttentionOnDeviceTest() override {
    backend_.reset();
    stream_.reset();
    device_.reset();
  }

  cuda::CudnnOptions Options() const {
    return {.search = LibrarySearch::FromEnvironment(),
            .compute_major = device_->properties().compute_major,
            .compute_minor = device_->properties().compute_minor};
  }

  AttentionBackend& Backend(int64_t workspace_bytes = 0) {
    backend_ = cuda::CreateCudnnAttention(
        [this]() -> absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>> {
          if (!GetParam()) return library_.Graphs();
          return cuda::LoadCudnn(Options());
        },
        {.workspace_bytes = workspace_bytes});
    return *backend_;
  }

  // Runs `op` on a copy of `memory` on the device; the image afterwards.
  template <class OpType>
  std::vector<std::byte> Run(AttentionBackend& backend, const TestMemory& memory, const OpType& op) {
    std::vector<std::byte> image = memory.image();
    const int64_t bytes = std::ssize(image), scratch_bytes = backend.ScratchBytes(op);
    std::unique_ptr<Arena> arena = *device_->Allocate(bytes), scratch = *device_->Allocate(scratch_bytes + 256);
    std::unique_ptr<Arena> staging = *device_->AllocatePinned(bytes);
    std::unique_ptr<Arena> filled = *device_->AllocatePinned(scratch_bytes + 256);
    std::memcpy(staging->base(), image.data(), image.size());
    std::memset(filled->base(), 0xFF, scratch_bytes + 256);  // NaNs: what is read before it is written shows.
    Check(backend.Prepare(op));
    Check(stream_->Copy(arena->base(), staging->base(), bytes));
    Check(stream_->Copy(scratch->base(), filled->base(), scratch_bytes + 256));
    const auto bound = std::get<OpType>(memory.Bind(Op(op), arena->base()));
    EXPECT_TRUE(backend.Takes(bound));
    Check((*CudaStream::From(*stream_))->Enqueue([&](cuda::StreamHandle handle) {
      return backend.Enqueue(bound, {scratch->base(), scratch_bytes}, handle);
    }));
    Check(stream_->Copy(staging->base(), arena->base(), bytes));
    Check(stream_->Copy(filled->base(), scratch->base(), scratch_bytes + 256));
    Check(stream_->Synchronize());
    for (int64_t i = 0; i < 256; ++i) EXPECT_EQ(filled->base()[scratch_bytes + i], std::byte{0xFF}) << i;
    std::memcpy(image.data(), staging->base(), image.size());
    return image;
  }

  // Of outputs, |got - want| in the Euclidean norm, by |want|; all else must not have changed.
  template <class OpType>
  static void ExpectNear(const TestMemory& memory, const OpType& op, std::vector<std::byte> got,
                         std::vector<std::byte> want, double tolerance) {
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

 private:
  static void Check(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

  AttentionStandIn library_;
  std::unique_ptr<CudaRuntime> runtime_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<AttentionBackend> backend_;
};

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
    std::vector<std::byte> got = Run(Backend(), memory, forward);
    ExpectNear(memory, forward, got, RunOnReference(memory, forward), kTolerance);
    EXPECT_TRUE(Run(Backend(), memory, forward) == got);

    const std::vector<std::byte> want = RunOnReference(memory, op);
    const int64_t whole = cuda::WorkspaceBytes(cuda::AttentionKey::Of(op));
    for (const int64_t workspace_bytes : {whole, whole / 2, int64_t{0}}) {
      SCOPED_TRACE(workspace_bytes);
      AttentionBackend& backend = Backend(workspace_bytes);
      got = Run(backend, memory, op);
      ExpectNear(memory, op, got, want, kTolerance);
      EXPECT_TRUE(Run(backend, memory, op) == got);
    }
    EXPECT_TRUE(Run(Backend(/*workspace_bytes=*/0), memory, op) == got) << "graphs that are built again";
  }
}

INSTANTIATE_TEST_SUITE_P(By, AttentionOnDeviceTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Cudnn" : "StandIn"; });

}  // namespace
}  // namespace shale::testing
