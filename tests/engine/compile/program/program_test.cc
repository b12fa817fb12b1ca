#include "engine/compile/program/program.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/accesses.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/rope.h"

namespace shale {
namespace {

Tensor Place(Tensor t, BufferId buffer, int64_t offset_bytes = 0) {
  t.where = {.symbol = buffer, .offset_bytes = offset_bytes};
  return t;
}
Tensor Vector(BufferId buffer, int64_t elements, DType dtype = DType::kFloat32) {
  return Place(Tensor::Contiguous(dtype, {elements}), buffer);
}

// Returns one string such as "x: read" for each operand.
std::vector<std::string> Visited(const Instruction& instruction, bool first_iteration) {
  std::vector<std::string> visited;
  VisitInstruction(instruction, first_iteration, [&](absl::string_view name, const Tensor&, Access access) {
    visited.push_back(
        absl::StrCat(name, access == Access::kRead ? ": read" : (access == Access::kWrite ? ": write" : ": update")));
  });
  return visited;
}

using Operands = std::vector<std::string>;

TEST(VisitInstruction, LeavesOutAbsentOperandsAndAddsScratch) {
  Instruction matmul{.action = Op(MatMul{.a = Vector(0, 4), .b = Vector(1, 4), .c_MN = Vector(2, 4)})};
  EXPECT_EQ(Visited(matmul, true), (Operands{"a: read", "b: read", "c: write"}));
  matmul.scratch = Vector(3, 8);
  EXPECT_EQ(Visited(matmul, true), (Operands{"a: read", "b: read", "c: write", "scratch: write"}));
}

TEST(VisitInstruction, WritesInTheFirstIterationWhatItAddsToLater) {
  Instruction sum{.action = Op(Sum{.x_N = Vector(0, 4), .total_1 = Vector(1, 1), .accumulate = true})};
  EXPECT_EQ(Visited(sum, true), (Operands{"x: read", "total: update"}));
  sum.first_iteration_differs = true;
  EXPECT_EQ(Visited(sum, true), (Operands{"x: read", "total: write"}));
  EXPECT_EQ(Visited(sum, false), (Operands{"x: read", "total: update"}));
}

TEST(VisitInstruction, KnowsWhatCollectivesAndCopiesTouch) {
  const Tensor local = Vector(0, 2), full = Vector(1, 4);
  const auto collective = [&](CollectiveKind kind) {
    return Instruction{
        .action =
            Collective{.kind = kind, .local = kind == CollectiveKind::kAllReduceSum ? Tensor() : local, .full = full}};
  };
  EXPECT_EQ(Visited(collective(CollectiveKind::kAllGather), true), (Operands{"local: read", "full: write"}));
  EXPECT_EQ(Visited(collective(CollectiveKind::kReduceScatterSum), true), (Operands{"local: write", "full: read"}));
  EXPECT_EQ(Visited(collective(CollectiveKind::kAllReduceSum), true), (Operands{"full: update"}));
  EXPECT_EQ(Visited({.action = StepItemCopy{StepItem::kTargets, full}}, true), Operands{"targets: write"});
  EXPECT_EQ(Visited({.action = StepItemCopy{StepItem::kTotals, full}}, true), Operands{"totals: read"});
  EXPECT_EQ(Visited({.action = Transfer{local, full, true}}, true), (Operands{"device: read", "host: write"}));
  EXPECT_EQ(Visited({.action = Transfer{local, full, false}}, true), (Operands{"device: write", "host: read"}));
}

TEST(NameOf, SaysWhatAnInstructionDoes) {
  EXPECT_EQ(NameOf(Instruction{.action = Op(MatMul{})}), "MatMul");
  EXPECT_EQ(NameOf(Instruction{.action = Collective{.kind = CollectiveKind::kReduceScatterSum}}), "ReduceScatterSum");
  EXPECT_EQ(NameOf(Instruction{.action = StepItemCopy{StepItem::kInputs}}), "ToDevice inputs");
  EXPECT_EQ(NameOf(Instruction{.action = StepItemCopy{StepItem::kGlobalTokens}}), "ToHost global_tokens");
  EXPECT_EQ(NameOf(Instruction{.action = Transfer{.to_host = true}}), "Offload");
  EXPECT_EQ(NameOf(Instruction{.action = Transfer{}}), "Fetch");
}

TEST(Names, AreDifferent) {
  const auto expect_distinct = [](auto first, int count) {
    std::set<std::string> names;
    for (int i = 0; i < count; ++i) names.insert(std::string(ToString(static_cast<decltype(first)>(i))));
    EXPECT_EQ(names.size(), count);
    EXPECT_EQ(names.count("?"), 0);
    EXPECT_EQ(ToString(static_cast<decltype(first)>(count)), "?");
  };
  expect_distinct(BufferCategory(), kBufferCategories);
  expect_distinct(StreamId(), kStreams);
  expect_distinct(Phase(), static_cast<int>(Phase::kEnd) + 1);
  expect_distinct(StepItem(), kStepItems);
}

TEST(DumpProgram, ListsBuffersAndInstructions) {
  StepProgram program;
  program.units = {"embedding", "blocks.0"};
  program.micro_batches = 3;
  program.buffers = {
      {.name = "blocks.0.weights", .category = BufferCategory::kParameterShards, .slot_bytes = 64, .persistent = true},
      {.name = "x", .category = BufferCategory::kActivations, .slot_bytes = 96, .slots = 3},
      {.name = "gradient", .category = BufferCategory::kUnshardedGradients, .slot_bytes = 128, .held_until = 2},
      {.name = "x", .category = BufferCategory::kActivations, .slot_bytes = 96, .memory = MemoryKind::kHost},
  };
  Tensor rows = Place(Tensor::Contiguous(DType::kBFloat16, {4, 12}), 1).Slice(1, 2, 8);
  Tensor own = Vector(2, 8);
  own.where.shard_stride_bytes = 32;
  program.instructions = {
      {.action = Collective{.local = Vector(0, 16), .full = Vector(2, 32)},
       .stream = StreamId::kGather,
       .phase = Phase::kBegin},
      {.action = Op(Sum{.x_N = rows, .total_1 = own, .accumulate = true}),
       .phase = Phase::kBackward,
       .unit = 1,
       .micro_batch = 0,
       .first_iteration_differs = true,
       .waits = {0, 2}},
      {.action = Op(Rope{.x_BSHD = rows}),
       .stream = StreamId::kReduce,
       .unit = 0,
       .micro_batch = 0,
       .last_iteration_only = true,
       .scratch = Vector(2, 4, DType::kInt16)},
  };
  program.loops = {{0, 1, 1}, {1, 3, 3}};
  EXPECT_EQ(DumpProgram(program), R"(2 units, 3 micro-batches, 4 buffers, 3 instructions

buffers
  #0 blocks.0.weights: 64 bytes, parameter shards, persistent
  #1 x: 3 x 96 bytes, activations kept
  #2 gradient: 128 bytes, unsharded gradients, held until 2
  #3 x: 96 bytes, activations kept, in host memory

once
     0  gather   begin      -          -   AllGather over shard: reads local = #0 blocks.0.weights f32[16]; writes full = #2 gradient f32[32]

3 times
     1  compute  backward   blocks.0   m0  Sum: reads x = #1 x+4 bf16[4, 8] strided; updates total = #2 gradient+shard*32 f32[8]; overwrites in the first iteration; waits 0, 2
     2  reduce   forward    embedding  m0  Rope: writes scratch = #2 gradient i16[4]; updates x = #1 x+4 bf16[4, 8] strided; in the last iteration only
)");
}

}  // namespace
}  // namespace shale
