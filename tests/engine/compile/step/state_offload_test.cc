// Tests when state in host memory is copied, and that the copies run beside the work around them.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/ops/update.h"
#include "tests/engine/compile/step/planned_decoder.h"

namespace shale::testing {
namespace {

constexpr int64_t kStateLayers = 5;

StepOptions WithState(const StateOffload& offload, int64_t ranks = 2) {
  return {.mesh = {.shard = ranks}, .micro_batches = 3, .offload_state = offload};
}

const Transfer* CopyOf(const Instruction& instruction, bool to_host) {
  const auto* transfer = std::get_if<Transfer>(&instruction.action);
  return transfer != nullptr && transfer->to_host == to_host ? transfer : nullptr;
}

bool IsUpdateOfState(const Instruction& instruction) {
  const auto* op = std::get_if<Op>(&instruction.action);
  return op != nullptr && op->Is<Update>();
}

TEST(StateOffload, EachTensorGoesInAndOutOnceAStep) {
  for (UpdateTime update : {UpdateTime::kAfterBackward, UpdateTime::kInBackward}) {
    StepOptions options = WithState({.moments = true});
    options.update = update;
    const Planned planned = PlanDecoder(options, kStateLayers);
    std::vector<BufferId> in, out;
    for (const Loop& loop : planned.program.loops) {
      for (InstructionId id = loop.begin; id < loop.end; ++id) {
        const Instruction& instruction = planned.program.instructions[id];
        if (const Transfer* copy = CopyOf(instruction, false)) in.push_back(copy->host.where.symbol);
        if (const Transfer* copy = CopyOf(instruction, true)) out.push_back(copy->host.where.symbol);
        if (!std::holds_alternative<Transfer>(instruction.action)) continue;
        EXPECT_EQ(instruction.stream, StreamId::kCopy);
        EXPECT_TRUE(loop.repeat == 1 || instruction.last_iteration_only) << ToString(update) << " " << id;
      }
    }
    EXPECT_EQ(in.size(), 2 * (kStateLayers + 2)) << ToString(update);  // m and v of embedding, blocks and head.
    EXPECT_EQ(in, out) << ToString(update);
    std::sort(in.begin(), in.end());
    EXPECT_EQ(std::unique(in.begin(), in.end()), in.end()) << ToString(update);
  }
}

// An update waits only for copies that were issued before the previous update. So while one group is updated, the next
// one is copied in and the previous one is copied back.
TEST(StateOffload, CopiesRunBesideTheUpdateBefore) {
  const Planned planned = PlanDecoder(WithState({.moments = true}), kStateLayers);
  const std::vector<Instruction>& all = planned.program.instructions;
  InstructionId previous = -1;
  int updates = 0;
  for (InstructionId id = 0; id < std::ssize(all); ++id) {
    if (!IsUpdateOfState(all[id])) continue;
    ++updates;
    if (previous >= 0) {
      for (const InstructionId wait : all[id].waits) {
        if (all[wait].stream != StreamId::kCopy) continue;
        EXPECT_LT(wait, previous) << id;
      }
    }
    previous = id;
  }
  EXPECT_EQ(updates, kStateLayers + 2);
}

// A shard is copied in one use ahead of its all-gather, so that the gather stream never waits for the copy of the next
// use: the copy that gather i waits for stands before gather i - 1.
TEST(StateOffload, ShardsAreCopiedInOneUseAheadOfTheirGather) {
  for (const int64_t prefetch : {0, 1, 2}) {
    StepOptions options = WithState({.parameters = true});
    options.prefetch = prefetch;
    const Planned planned = PlanDecoder(options, kStateLayers);
    const std::vector<Instruction>& all = planned.program.instructions;
    InstructionId previous = -1;
    for (InstructionId id = 0; id < std::ssize(all); ++id) {
      const auto* gather = std::get_if<Collective>(&all[id].action);
      if (gather == nullptr || gather->kind != CollectiveKind::kAllGather) continue;
      InstructionId copy = -1;
      for (InstructionId other = 0; other < id; ++other) {
        const Transfer* fetch = CopyOf(all[other], false);
        if (fetch != nullptr && fetch->device.where.symbol == gather->local.where.symbol) copy = other;
      }
      ASSERT_GE(copy, 0) << id;
      if (previous >= 0) {
        EXPECT_LT(copy, previous) << "prefetch " << prefetch << ", gather " << id;
      }
      previous = id;
    }
    EXPECT_GE(previous, 0);
  }
}

TEST(StateOffload, OneShardIsCopiedInInPlaceOfAGather) {
  for (bool reshard : {true, false}) {
    StepOptions options = WithState({.parameters = true}, /*ranks=*/1);
    options.reshard_after_forward = reshard;
    const Planned planned = PlanDecoder(options, kStateLayers);
    int64_t copies = 0;
    for (const Instruction& instruction : planned.program.instructions) {
      copies += CopyOf(instruction, false) != nullptr && instruction.phase != Phase::kUpdate;
      EXPECT_FALSE(std::holds_alternative<Collective>(instruction.action));
    }
    // Each unit is used in forward and in backward. The head's backward follows its forward, in one visit.
    EXPECT_EQ(copies, reshard ? 2 * (kStateLayers + 1) : kStateLayers + 2) << reshard;
  }
}

TEST(StateOffload, ProgramsWithoutUpdatesCopyOnlyWhatTheyUse) {
  for (GraphMode mode : {GraphMode::kEvaluation, GraphMode::kLogits}) {
    StepOptions options = WithState({.moments = true, .parameters = true});
    options.micro_batches = 1;
    const Planned planned = PlanDecoder(options, kStateLayers, mode);
    for (const Instruction& instruction : planned.program.instructions) {
      EXPECT_EQ(CopyOf(instruction, true), nullptr);
      const Transfer* fetch = CopyOf(instruction, false);
      if (fetch == nullptr) continue;
      EXPECT_EQ(planned.program.buffers[fetch->host.where.symbol].category, BufferCategory::kParameterShards);
    }
  }
}

}  // namespace
}  // namespace shale::testing
