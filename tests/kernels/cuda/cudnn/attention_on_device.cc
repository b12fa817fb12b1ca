#include "tests/kernels/cuda/cudnn/attention_on_device.h"

#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "tests/kernels/cuda/cudnn/random_attention.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/op_rig.h"

namespace shale::testing {
namespace {

// p, ds and the results are rounded to bf16 one after the other, each by up to 2^-9 of its value.
constexpr double kTolerance = 4 * 0x1p-9;

// Expects |got - want| <= kTolerance |want| for each output, in the Euclidean norm, and that nothing else has changed.
template <class OpType>
void ExpectNear(const TestMemory& memory, const OpType& op, std::vector<std::byte> got, std::vector<std::byte> want) {
  OpType::Visit(op, [&](absl::string_view name, const Tensor& t, Access access) {
    if (access == Access::kRead) return;
    const Tensor got_t = memory.Bind(t, got.data()), want_t = memory.Bind(t, want.data());
    double difference = 0, size = 0;
    for (int64_t i = 0; i < t.elements(); ++i) {
      difference += std::pow(ElementOf(got_t, i) - ElementOf(want_t, i), 2);
      size += std::pow(ElementOf(want_t, i), 2);
      SetElement(got_t, i, ElementOf(want_t, i));
    }
    EXPECT_LE(std::sqrt(difference), kTolerance * std::sqrt(size)) << std::string(name.data(), name.size());
  });
  EXPECT_TRUE(got == want) << "bytes changed that are no output's";
}

std::vector<std::byte> RunOn(OpRig& rig, const TestMemory& memory, const Op& op) {
  std::vector<std::byte> image = memory.image();
  const absl::Status status = rig.Run(memory, op, image);
  EXPECT_TRUE(status.ok()) << status;
  return image;
}

// Runs `op` twice, on newly built graphs, in pieces that fit `workspace_bytes`. Expects the same bits both times, and
// `want` up to rounding. Returns the image afterwards.
template <class OpType>
std::vector<std::byte> ExpectRepeats(const AttentionMachine& machine, int64_t workspace_bytes, const TestMemory& memory,
                                     const OpType& op, const std::vector<std::byte>& want) {
  CudaTestBackendOptions options = machine.backend;
  options.create_attention = [&] {
    return cuda::CreateCudnnAttention(machine.load, {.workspace_bytes = workspace_bytes});
  };
  OpRig rig(CudaTestBackend(options));
  std::vector<std::byte> got = RunOn(rig, memory, op);
  ExpectNear(memory, op, got, want);
  EXPECT_TRUE(RunOn(rig, memory, op) == got);
  return got;
}

// The kernels have tiles of 64 and 128.
const AttentionShape kShapes[] = {
    {.batch = 1, .length = 4, .heads = 1, .groups = 1, .width = 64},
    {.batch = 2, .length = 132, .heads = 4, .groups = 2, .width = 64, .gap = 8},
    {.batch = 2, .length = 68, .heads = 3, .groups = 3, .width = 128},
    {.batch = 1, .length = 196, .heads = 2, .groups = 1, .width = 128, .window = 17},
    {.batch = 3, .length = 128, .heads = 2, .groups = 1, .width = 96},
    {.batch = 1, .length = 200, .heads = 2, .groups = 2, .width = 96, .window = 130},
    {.batch = 2, .length = 68, .heads = 4, .groups = 2, .width = 64, .gap = 8, .causal = false},
    {.batch = 1, .length = 200, .heads = 3, .groups = 3, .width = 128, .causal = false},
};

TEST_P(AttentionOnDeviceTest, IsTheReferenceWithinRoundingAndRepeatsItselfToTheBit) {
  const absl::Status loaded = GetParam().load().status();
  ASSERT_TRUE(loaded.ok()) << loaded;
  for (const AttentionShape& shape : kShapes) {
    TestMemory memory;
    const AttentionBackward op = RandomAttention(memory, shape);
    SCOPED_TRACE(cuda::AttentionKey::Of(op).ToString());
    ASSERT_TRUE(cuda::TakenByCudnn(op));
    const AttentionForward forward = ForwardOf(op);
    ExpectRepeats(GetParam(), /*workspace_bytes=*/0, memory, forward, RunOnReference(memory, forward));

    const std::vector<std::byte> want = RunOnReference(memory, op);
    std::vector<std::byte> got;
    const int64_t whole = cuda::WorkspaceBytes(cuda::AttentionKey::Of(op));
    for (const int64_t workspace_bytes : {whole, whole / 2, int64_t{0}}) {
      SCOPED_TRACE(workspace_bytes);
      got = ExpectRepeats(GetParam(), workspace_bytes, memory, op, want);
    }
    EXPECT_TRUE(ExpectRepeats(GetParam(), /*workspace_bytes=*/0, memory, op, want) == got)
        << "graphs that are built again";
  }
}

// Sums in any order, and so does not repeat its bits.
TEST_P(AttentionOnDeviceTest, WithoutAnOrderOfSumsItIsTheReferenceWithinRounding) {
  const absl::Status loaded = GetParam().load().status();
  ASSERT_TRUE(loaded.ok()) << loaded;
  CudaTestBackendOptions options = GetParam().backend;
  options.create_attention = [&] { return cuda::CreateCudnnAttention(GetParam().load, {.deterministic = false}); };
  std::vector<AttentionShape> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.push_back({.batch = 1, .length = 1024, .heads = 2, .groups = 1, .width = 64});  // Eight tiles add to each d_q.
  for (const AttentionShape& shape : shapes) {
    TestMemory memory;
    const AttentionBackward op = RandomAttention(memory, shape);
    SCOPED_TRACE(cuda::AttentionKey::Of(op).ToString());
    OpRig rig(CudaTestBackend(options));
    ExpectNear(memory, op, RunOn(rig, memory, op), RunOnReference(memory, op));
  }
}

}  // namespace
}  // namespace shale::testing
