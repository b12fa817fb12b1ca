// LAYERED keeps packed weights while the micro-batches run through a unit.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "kernels/ops/matmul.h"
#include "tests/engine/compile/step/planned_decoder.h"

namespace shale::testing {
namespace {

constexpr int64_t kPackedLayers = 4;

// Ops that pack every b and need no scratch.
class PackingOps : public Ops {
 public:
  int64_t ScratchBytes(const Op&) const override { return 0; }
  int64_t PackedBytes(const MatMul& op) const override { return op.b.extent_bytes() + 60; }

 protected:
  absl::Status Enqueue(const Op&, Scratch, Stream&) override { return absl::UnimplementedError("not to be run"); }
};

// Returns the matmuls that have a place for packed b, by the buffer of that place, in issue order.
std::map<BufferId, std::vector<InstructionId>> PackedMatMuls(const StepProgram& program) {
  std::map<BufferId, std::vector<InstructionId>> matmuls;
  for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
    const Op* op = std::get_if<Op>(&program.instructions[id].action);
    const MatMul* matmul = op == nullptr ? nullptr : op->As<MatMul>();
    if (matmul != nullptr && matmul->packed_b.present()) matmuls[matmul->packed_b.where.symbol].push_back(id);
  }
  return matmuls;
}

const Loop& LoopOf(const StepProgram& program, InstructionId id) {
  for (const Loop& loop : program.loops) {
    if (id < loop.end) return loop;
  }
  return program.loops.back();
}

Planned Plan(Accumulation accumulation, int ranks, int64_t micro_batches, CheckpointingPreset preset) {
  const PackingOps ops;
  // PlanDecoder checks that accesses that overlap in memory are ordered.
  return PlanDecoder({.accumulation = accumulation,
                      .mesh = {.shard = ranks},
                      .micro_batches = micro_batches,
                      .activations = {.preset = preset}},
                     kPackedLayers, GraphMode::kTraining, Activation::kSwiGlu, &ops);
}

TEST(PackedWeights, AreMadeInTheFirstMicroBatchForAll) {
  for (const int ranks : {1, 2, 3}) {
    for (const int64_t micro_batches : {2, 3, 7}) {
      for (const CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kBlock}) {
        const Planned planned = Plan(Accumulation::kLayered, ranks, micro_batches, preset);
        std::map<int, size_t> places, matmuls;  // By unit.
        for (const auto& [place, ids] : PackedMatMuls(planned.program)) {
          const Instruction& first = planned.program.instructions[ids.front()];
          const auto& packer = *std::get<Op>(first.action).As<MatMul>();
          EXPECT_TRUE(first.first_iteration_differs);
          for (const InstructionId id : ids) {
            const Instruction& instruction = planned.program.instructions[id];
            const auto& matmul = *std::get<Op>(instruction.action).As<MatMul>();
            EXPECT_TRUE(matmul.b_is_packed);
            EXPECT_EQ(matmul.b.where, packer.b.where);
            EXPECT_EQ(matmul.transpose_b, packer.transpose_b);
            EXPECT_EQ(instruction.first_iteration_differs, id == ids.front()) << "packed once";
            EXPECT_EQ(LoopOf(planned.program, id).begin, LoopOf(planned.program, ids.front()).begin);
          }
          EXPECT_EQ(LoopOf(planned.program, ids.front()).repeat, micro_batches);
          ++places[first.unit];
          matmuls[first.unit] += ids.size();
        }
        // Every block packs the weights of its four matmuls for forward and for backward, and once more those of the
        // three matmuls that BLOCK computes again. The head, whose tokens come in eight chunks, packs the weight for
        // the logits and for their gradient.
        for (int unit = 1; unit <= kPackedLayers; ++unit) {
          EXPECT_EQ(places[unit], preset == CheckpointingPreset::kBlock ? 11 : 8) << unit;
          EXPECT_EQ(matmuls[unit], places[unit]) << unit;
        }
        EXPECT_EQ(places[kPackedLayers + 1], 2);
        EXPECT_EQ(matmuls[kPackedLayers + 1], 2 * 8);
      }
    }
  }
}

TEST(PackedWeights, AreNotKeptWhereTheyServeOneMicroBatch) {
  for (const CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kBlock}) {
    EXPECT_TRUE(PackedMatMuls(Plan(Accumulation::kLayered, 2, 1, preset).program).empty());
    EXPECT_TRUE(PackedMatMuls(Plan(Accumulation::kSharded, 2, 3, preset).program).empty());
    EXPECT_TRUE(PackedMatMuls(Plan(Accumulation::kNoSync, 2, 3, preset).program).empty());
  }
}

}  // namespace
}  // namespace shale::testing
