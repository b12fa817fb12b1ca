// Tests what an update on the host moves, and that its copies run beside the updates around them.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/ops/update.h"
#include "tests/engine/compile/memory/interleaving.h"
#include "tests/engine/compile/step/planned_decoder.h"

namespace shale::testing {
namespace {

constexpr int64_t kLayers = 3, kGroups = kLayers + 2;  // Embedding, blocks and head.

StepOptions With(UpdateTime update, int64_t ranks, int64_t micro_batches) {
  return {.mesh = {.shard = ranks},
          .micro_batches = micro_batches,
          .update_device = UpdateDevice::kHost,
          .update = update,
          .clipping = update == UpdateTime::kInBackward ? Clipping::kPerUnit : Clipping::kGlobal};
}

bool IsUpdate(const Instruction& instruction) {
  const auto* op = std::get_if<Op>(&instruction.action);
  return op != nullptr && op->Is<Update>();
}

// Returns whether an instruction copies a vector of a group's size, not a scalar, during the update.
bool MovesGroup(const StepProgram& program, const Instruction& instruction) {
  const auto* transfer = std::get_if<Transfer>(&instruction.action);
  return transfer != nullptr && instruction.phase == Phase::kUpdate &&
         program.buffers[transfer->host.where.symbol].category != BufferCategory::kData;
}

TEST(HostUpdate, GradientsGoDownAndWeightsComeUpOnceAStep) {
  for (UpdateTime update : {UpdateTime::kAfterBackward, UpdateTime::kInBackward}) {
    for (int64_t ranks : {1, 2}) {
      const Planned planned = PlanDecoder(With(update, ranks, /*micro_batches=*/3), kLayers);
      int64_t updates = 0, gradients = 0, weights = 0;
      for (const Loop& loop : planned.program.loops) {
        for (InstructionId id = loop.begin; id < loop.end; ++id) {
          const Instruction& instruction = planned.program.instructions[id];
          const std::string what = absl::StrCat(ToString(update), " W=", ranks, " instruction ", id);
          if (instruction.stream == StreamId::kHost || MovesGroup(planned.program, instruction)) {
            EXPECT_TRUE(loop.repeat == 1 || instruction.last_iteration_only) << what;
          }
          if (IsUpdate(instruction)) {
            ++updates;
            EXPECT_EQ(instruction.stream, StreamId::kHost) << what;
          }
          if (!MovesGroup(planned.program, instruction)) continue;
          EXPECT_EQ(instruction.stream, StreamId::kCopy) << what;
          const auto& transfer = std::get<Transfer>(instruction.action);
          const Buffer& host = planned.program.buffers[transfer.host.where.symbol];
          (transfer.to_host ? gradients : weights) += 1;
          EXPECT_EQ(host.category, transfer.to_host ? planned.program.buffers[transfer.device.where.symbol].category
                                                    : BufferCategory::kParameterShards)
              << what;
          EXPECT_EQ(host.persistent, !transfer.to_host) << what;
        }
      }
      EXPECT_EQ(updates, kGroups);
      EXPECT_EQ(gradients, kGroups);
      EXPECT_EQ(weights, kGroups);
    }
  }
}

// An update waits only for copies that were issued before the previous update. So while one group is updated, the
// gradient of the next one goes to the host and the weights of the previous one come back.
TEST(HostUpdate, CopiesRunBesideTheUpdateBefore) {
  const Planned planned = PlanDecoder(With(UpdateTime::kAfterBackward, 2, 3), kLayers);
  const std::vector<Instruction>& all = planned.program.instructions;
  InstructionId before = -1, previous = -1;
  for (InstructionId id = 0; id < std::ssize(all); ++id) {
    if (!IsUpdate(all[id])) continue;
    for (const InstructionId wait : all[id].waits) {
      if (before < 0 || all[wait].stream != StreamId::kCopy) continue;
      EXPECT_LT(wait, previous) << id;
    }
    before = std::exchange(previous, id);
  }
  EXPECT_GE(before, 0);
}

// Any order that streams and waits allow leaves every read what program order gives it.
TEST(HostUpdate, EveryOrderThatTheWaitsAllowReadsTheSame) {
  for (UpdateTime update : {UpdateTime::kAfterBackward, UpdateTime::kInBackward}) {
    for (int64_t ranks : {1, 2}) {
      const Planned planned = PlanDecoder(With(update, ranks, /*micro_batches=*/2), /*layers=*/2);
      for (uint64_t order = 0; order < 3; ++order) {
        ASSERT_EQ(RunInterleaved(planned.program, planned.plan, order), "") << ToString(update) << " W=" << ranks;
      }
      // Shows that a missing wait of the host stream is found.
      Planned broken = planned;
      for (Instruction& instruction : broken.program.instructions) {
        if (instruction.stream == StreamId::kHost) instruction.waits.clear();
      }
      int different = 0;
      for (uint64_t order = 0; order < 10; ++order) {
        different += !RunInterleaved(broken.program, broken.plan, order).empty();
      }
      EXPECT_GT(different, 0) << ToString(update) << " W=" << ranks;
    }
  }
}

TEST(HostUpdate, ProgramsWithoutUpdatesHaveNoHostStream) {
  StepOptions options = With(UpdateTime::kAfterBackward, 2, 1);
  EXPECT_TRUE(UsesStream(PlanDecoder(options, kLayers).program, StreamId::kHost));
  EXPECT_FALSE(UsesStream(PlanDecoder(options, kLayers, GraphMode::kEvaluation).program, StreamId::kHost));
  options.update_device = UpdateDevice::kSame;
  EXPECT_FALSE(UsesStream(PlanDecoder(options, kLayers).program, StreamId::kHost));
}

}  // namespace
}  // namespace shale::testing
