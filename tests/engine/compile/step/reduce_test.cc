// Tests which gradients pass through a unit gradient on their way into the shard.
#include <gtest/gtest.h>

#include "engine/compile/step/compile.h"
#include "kernels/ops/flat.h"
#include "tests/engine/compile/step/planned_decoder.h"

namespace shale::testing {
namespace {

struct Reductions {
  int64_t into_shards = 0;  // Directly: the output is the rank's accumulation buffer.
  int64_t in_place = 0;     // Within the unit gradient.
  int64_t accumulated = 0;  // Unit gradients that are then added to the accumulation buffer.
};

Reductions ReductionsOf(const StepOptions& options) {
  const Planned planned = PlanDecoder(options, /*layers=*/3);
  Reductions found;
  for (const Instruction& instruction : planned.program.instructions) {
    if (const Op* op = std::get_if<Op>(&instruction.action); op != nullptr) {
      found.accumulated += op->Is<Accumulate>();
    }
    const Collective* collective = std::get_if<Collective>(&instruction.action);
    if (collective == nullptr || collective->kind != CollectiveKind::kReduceScatterSum) continue;
    const bool in_place = collective->local.where.symbol == collective->full.where.symbol;
    found.in_place += in_place;
    const Buffer& local = planned.program.buffers[collective->local.where.symbol];
    found.into_shards += !in_place && local.category == BufferCategory::kGradientShards;
  }
  return found;
}

TEST(Reductions, OfTheOnlyMicroBatchGoStraightIntoTheShard) {
  const int64_t units = 3 + 2;  // Blocks, the embedding, the head.
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kZero2}) {
    const Reductions one =
        ReductionsOf({.strategy = strategy, .accumulation = Accumulation::kSharded, .mesh = {.shard = 2}});
    EXPECT_EQ(one.into_shards, units);
    EXPECT_EQ(one.in_place, 0);
    EXPECT_EQ(one.accumulated, 0);
    const Reductions several = ReductionsOf(
        {.strategy = strategy, .accumulation = Accumulation::kSharded, .mesh = {.shard = 2}, .micro_batches = 3});
    EXPECT_EQ(several.into_shards, 0);
    EXPECT_EQ(several.in_place, several.accumulated);
    EXPECT_GE(several.accumulated, units);
    const Reductions layered = ReductionsOf(
        {.strategy = strategy, .accumulation = Accumulation::kLayered, .mesh = {.shard = 2}, .micro_batches = 3});
    EXPECT_EQ(layered.into_shards, units);
    EXPECT_EQ(layered.accumulated, 0);
  }
}

}  // namespace
}  // namespace shale::testing
