// Tests which graphs are asked for, and that together they compute the op.
#include "kernels/cuda/cudnn/cudnn_attention.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/attention_pieces.h"
#include "kernels/cuda/cudnn/attention_rates.h"
#include "kernels/cuda/scratch.h"
#include "kernels/ops/matmul.h"
#include "tests/kernels/cuda/cudnn/attention_stand_in.h"
#include "tests/kernels/cuda/cudnn/random_attention.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {
namespace {

using cuda::AttentionBackend;
using cuda::AttentionKey;
using ::testing::AllOf;
using ::testing::HasSubstr;

auto NamesTheWaysOut() {
  return AllOf(HasSubstr("runtime.cudnn_attention=false"), HasSubstr("another version of cuDNN, 9.16 or newer"));
}

template <class OpType>
absl::Status Prepare(AttentionBackend& backend, const OpType& op) {
  return backend.Prepare(op, backend.ScratchBytes(op));
}

class CudnnAttentionTest : public ::testing::Test {
 protected:
  ~CudnnAttentionTest() override {
    backend_.reset();
    EXPECT_EQ(library_.alive, 0) << "graphs are left";
  }

  AttentionBackend& Backend(int64_t workspace_bytes = int64_t{1} << 30) {
    backend_ = cuda::CreateCudnnAttention([this] { return library_.Graphs(); }, {.workspace_bytes = workspace_bytes});
    return *backend_;
  }

  // Runs `op` on `memory`. Expects that no byte past the scratch changes. Returns the image afterwards.
  template <class OpType>
  std::vector<std::byte> Run(AttentionBackend& backend, const TestMemory& memory, const OpType& op) {
    const AlignedBytes bytes(memory.image());
    const int64_t scratch_bytes = backend.ScratchBytes(op);
    const AlignedBytes scratch(std::vector<std::byte>(scratch_bytes + 64, std::byte{0x5E}));
    const auto bound = *memory.Bind(shale::Op(op), bytes.data()).As<OpType>();
    EXPECT_TRUE(backend.Takes(op));
    EXPECT_TRUE(backend.Takes(bound));
    EXPECT_TRUE(Prepare(backend, op).ok());
    const size_t built = library_.built.size();
    EXPECT_TRUE(backend.Enqueue(bound, {scratch.data(), scratch_bytes}, /*stream=*/nullptr).ok());
    EXPECT_EQ(library_.built.size(), built) << "not all was prepared";
    for (int i = 0; i < 64; ++i) EXPECT_EQ(scratch.data()[scratch_bytes + i], std::byte{0x5E});
    for (const AttentionCall& call : library_.calls) EXPECT_EQ(call.workspace, scratch.data());
    return std::vector<std::byte>(bytes.data(), bytes.data() + memory.image().size());
  }

  AttentionStandIn library_;

 private:
  std::unique_ptr<AttentionBackend> backend_;
};

TEST_F(CudnnAttentionTest, PlansNeedNoLibrary) {
  const auto backend = cuda::CreateCudnnAttention([] { return absl::NotFoundError("no such library here"); });
  const AttentionBackward op = SymbolicAttention({.batch = 4, .length = 4096, .heads = 28, .groups = 4, .width = 128});
  EXPECT_TRUE(backend->Takes(op) && backend->Takes(ForwardOf(op)));
  EXPECT_EQ(backend->ScratchBytes(ForwardOf(op)), 256);
  // One key/value head, with its seven query heads.
  EXPECT_EQ(backend->ScratchBytes(op), 7 * (4 * 4096 + 4 * 4096 * 128 + 2 * 4096 * 4096) + 256);
  const absl::Status status = Prepare(*backend, op);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(status.message()), "no such library here");
}

// The plan asks the same questions, so it counts the scratch of our own kernels for what they compute.
TEST_F(CudnnAttentionTest, LeavesToOurKernelsWhatTheyComputeFaster) {
  const auto rates = cuda::AttentionRates::Parse(
      "shale attention rates 1\n9.0 backward D=64 S=4096 causal: own 170 cudnn 152 free 307\n");
  ASSERT_TRUE(rates.ok()) << rates.status();
  const auto create = [&](bool deterministic) {
    return cuda::CreateCudnnAttention([this] { return library_.Graphs(); },
                                      {.deterministic = deterministic, .rates = rates->On({9, 0})});
  };
  const AttentionBackward op = SymbolicAttention({.batch = 2, .length = 4096, .heads = 4, .groups = 2});
  const AttentionBackward shorter = SymbolicAttention({.batch = 2, .length = 1024, .heads = 4, .groups = 2});
  const auto backend = create(/*deterministic=*/true);
  EXPECT_FALSE(backend->Takes(op));
  EXPECT_TRUE(backend->Takes(ForwardOf(op)) && backend->Takes(shorter));
  EXPECT_TRUE(create(/*deterministic=*/false)->Takes(op));
  EXPECT_EQ(cuda::KernelsOfAttention(backend.get(), shale::Op(op)), "own");
  EXPECT_EQ(cuda::KernelsOfAttention(backend.get(), shale::Op(ForwardOf(op))), "cuDNN");
  EXPECT_EQ(cuda::KernelsOfAttention(nullptr, shale::Op(ForwardOf(op))), "own");
  EXPECT_EQ(cuda::KernelsOfAttention(backend.get(), shale::Op(MatMul())), "");
}

TEST_F(CudnnAttentionTest, ForwardIsOneGraph) {
  const AttentionShape shape = {.batch = 2, .length = 36, .heads = 4, .groups = 2, .width = 96, .gap = 8};
  AttentionShape with_window = shape, both_ways = shape;
  with_window.window = 5;
  both_ways.causal = false;
  for (const AttentionShape& one : {shape, with_window, both_ways}) {
    TestMemory memory;
    const AttentionForward op = ForwardOf(RandomAttention(memory, one));
    library_.calls.clear();
    EXPECT_TRUE(Run(Backend(/*workspace_bytes=*/0), memory, op) == RunOnReference(memory, op));
    EXPECT_EQ(library_.calls.size(), 1u);
  }
}

TEST_F(CudnnAttentionTest, ThePiecesOfABackwardAreTheWhole) {
  const AttentionShape shapes[] = {{.batch = 3, .length = 36, .heads = 6, .groups = 2, .width = 64},
                                   {.batch = 2, .length = 12, .heads = 5, .groups = 5, .width = 128, .window = 4},
                                   {.batch = 1, .length = 20, .heads = 3, .groups = 1, .width = 96, .gap = 16},
                                   {.batch = 2, .length = 12, .heads = 4, .groups = 2, .causal = false}};
  for (const AttentionShape& shape : shapes) {
    TestMemory memory;
    const AttentionBackward op = RandomAttention(memory, shape);
    const std::vector<std::byte> want = RunOnReference(memory, op);
    const int64_t whole = cuda::WorkspaceBytes(AttentionKey::Of(op));
    for (const int64_t parts : {int64_t{1}, shape.batch, shape.batch * 2, shape.batch * shape.groups}) {
      SCOPED_TRACE(AttentionKey::Of(op).ToString() + " in " + std::to_string(parts));
      library_.calls.clear();
      EXPECT_TRUE(Run(Backend((whole - 256) / parts + 256), memory, op) == want);
      EXPECT_GE(std::ssize(library_.calls), parts == 1 ? 1 : shape.batch);
      EXPECT_LE(std::ssize(library_.calls), shape.batch * shape.groups);
    }
  }
}

// More scratch makes fewer pieces of the same op, and what was prepared for it is what a launch with it runs.
TEST_F(CudnnAttentionTest, TakesTheScratchThatALaunchHas) {
  TestMemory memory;
  const AttentionBackward op = RandomAttention(memory, {.batch = 3, .length = 36, .heads = 6, .groups = 2});
  const std::vector<std::byte> want = RunOnReference(memory, op);
  const int64_t whole = cuda::WorkspaceBytes(AttentionKey::Of(op));
  AttentionBackend& backend = Backend(/*workspace_bytes=*/0);
  const int64_t least = backend.ScratchBytes(op);
  EXPECT_EQ(backend.AmpleScratchBytes(op, 0), least);
  EXPECT_EQ(backend.AmpleScratchBytes(op, whole), whole);
  EXPECT_EQ(backend.AmpleScratchBytes(op, 10 * whole), whole);
  EXPECT_EQ(Backend(whole).AmpleScratchBytes(op, least), whole);
  // Groups of heads, single sequences, two sequences and one, all of them.
  for (const auto& [most, calls] :
       std::vector<std::pair<int64_t, size_t>>{{least, 6}, {whole / 2, 3}, {whole - 1, 2}, {whole, 1}}) {
    AttentionBackend& one = Backend(/*workspace_bytes=*/0);
    library_.calls.clear();
    const int64_t scratch_bytes = one.AmpleScratchBytes(op, most);
    EXPECT_LE(scratch_bytes, std::max(least, most));
    ASSERT_TRUE(one.Prepare(op, scratch_bytes).ok());
    const size_t built = library_.built.size();
    const AlignedBytes bytes(memory.image());
    const AlignedBytes scratch(std::vector<std::byte>(scratch_bytes, std::byte{0}));
    const auto bound = *memory.Bind(shale::Op(op), bytes.data()).As<AttentionBackward>();
    EXPECT_TRUE(one.Enqueue(bound, {scratch.data(), scratch_bytes}, /*stream=*/nullptr).ok());
    EXPECT_EQ(library_.built.size(), built) << "not all was prepared";
    EXPECT_EQ(library_.calls.size(), calls);
    EXPECT_TRUE(std::vector<std::byte>(bytes.data(), bytes.data() + memory.image().size()) == want);
  }
}

TEST_F(CudnnAttentionTest, AGraphServesAllOpsOfItsKind) {
  AttentionBackend& backend = Backend();
  AttentionBackward op = SymbolicAttention({.batch = 2, .length = 8, .heads = 2});
  const auto built = [&] {
    EXPECT_TRUE(Prepare(backend, op).ok() && Prepare(backend, ForwardOf(op)).ok());
    return library_.built.size();
  };
  EXPECT_EQ(built(), 2u);
  EXPECT_EQ(built(), 2u);
  op.q_BSHD.where.symbol = 77;
  EXPECT_EQ(built(), 2u);
  op.window = 8;
  EXPECT_EQ(built(), 2u);
  op.window = 3;
  EXPECT_EQ(built(), 4u);
  op.scale *= 2;
  EXPECT_EQ(built(), 6u);
  op.window = 0;
  op.causal = false;
  EXPECT_EQ(built(), 8u);
}

TEST_F(CudnnAttentionTest, AGraphThatNeedsMoreThanIsPlannedIsRefusedWhenItIsPrepared) {
  library_.workspace_bytes = 257;
  const AttentionForward op = ForwardOf(SymbolicAttention({.batch = 2, .length = 8, .heads = 2}));
  const absl::Status status = Prepare(Backend(), op);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("needs 257 bytes of workspace, but 256 are planned"),
                                                   HasSubstr("attention forward B=2 S=8 H=2 G=1 D=64")));
  EXPECT_THAT(std::string(status.message()), NamesTheWaysOut());
  library_.workspace_bytes = 256;
  EXPECT_TRUE(Prepare(Backend(), op).ok());
}

// A version of cuDNN that needs one byte more than the table says has no kernel for us, and the error only said that.
TEST_F(CudnnAttentionTest, AVersionThatNeedsMoreThanTheTableSaysIsRefusedWithTheWaysOut) {
  const AttentionBackward op = SymbolicAttention({.batch = 2, .length = 8, .heads = 2});
  const auto expect_refused = [&](const absl::Status& status, int64_t planned) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("Requires " + std::to_string(planned + 1)),
                      HasSubstr(std::to_string(planned) + " bytes of workspace are planned"), NamesTheWaysOut()));
  };
  library_.more_bytes = 1;
  expect_refused(Prepare(Backend(), op), cuda::WorkspaceBytes(AttentionKey::Of(op)));
  expect_refused(Prepare(Backend(), ForwardOf(op)), 256);
  EXPECT_TRUE(library_.built.empty());
  library_.more_bytes = 0;
  EXPECT_TRUE(Prepare(Backend(), op).ok() && Prepare(Backend(), ForwardOf(op)).ok());
}

TEST_F(CudnnAttentionTest, WhatFailsFailsTheOpAndMayWorkLater) {
  TestMemory memory;
  const AttentionBackward op = RandomAttention(memory, {.batch = 2, .length = 8, .heads = 2});
  const AlignedBytes bytes(memory.image());
  const auto bound = *memory.Bind(shale::Op(op), bytes.data()).As<AttentionBackward>();
  AttentionBackend& backend = Backend();
  const AlignedBytes scratch(std::vector<std::byte>(backend.ScratchBytes(op)));
  const auto run = [&] { return backend.Enqueue(bound, {scratch.data(), backend.ScratchBytes(op)}, nullptr); };
  library_.build_status = absl::UnimplementedError("no kernel");
  EXPECT_EQ(Prepare(backend, op).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(run().code(), absl::StatusCode::kUnimplemented);
  library_.build_status = absl::OkStatus();
  library_.enqueue_status = absl::InternalError("a lost GPU");
  EXPECT_TRUE(Prepare(backend, op).ok());
  EXPECT_EQ(run().code(), absl::StatusCode::kInternal);
  library_.enqueue_status = absl::OkStatus();
  EXPECT_TRUE(run().ok());
}

}  // namespace
}  // namespace shale::testing
