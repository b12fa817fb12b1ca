#include "engine/compile/program/live_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/compile/memory/plan.h"
#include "tests/engine/compile/memory/program_builder.h"
#include "tests/engine/compile/memory/random_program.h"

namespace shale::testing {
namespace {

TEST(LiveBytes, OfATransientAreThereFromItsFirstToItsLastInstruction) {
  ProgramBuilder b;
  b.AddPersistent("state", 6);
  const BufferId kept = b.AddBuffer("kept", 10);
  const BufferId brief = b.AddBuffer("brief", 300);
  b.AddBuffer("unused", 1000);
  const BufferId host = b.AddHostBuffer("host", 4000);
  b.program().buffers[kept].category = BufferCategory::kActivations;
  b.Touch(StreamId::kCompute, {}, {b.Bytes(kept)});
  b.Touch(StreamId::kCompute, {b.Bytes(kept)}, {b.Bytes(brief)});
  b.Touch(StreamId::kCopy, {b.Bytes(kept)}, {b.Bytes(host)});
  b.Touch(StreamId::kCompute, {}, {});
  const StepProgram program = b.Finish();
  std::vector<int64_t> totals, activations;
  VisitLiveBytes(program, [&](InstructionId id, const LiveBytes& live) {
    EXPECT_EQ(id, static_cast<InstructionId>(totals.size()));
    totals.push_back(live.total);
    activations.push_back(live.by_category[static_cast<int>(BufferCategory::kActivations)]);
  });
  EXPECT_EQ(totals, (std::vector<int64_t>{16, 316, 16, 6}));
  EXPECT_EQ(activations, (std::vector<int64_t>{10, 10, 10, 0}));
  EXPECT_EQ(PersistentBytes(program).total, 6);
}

TEST(LiveBytes, LargestIsThePlansLowerBoundAndCategoriesAddUp) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const StepProgram program = RandomProgram(seed);
    const absl::StatusOr<MemoryPlan> plan = PlanMemory(program, {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    LiveBytes largest;
    VisitLiveBytes(program, [&](InstructionId id, const LiveBytes& live) {
      int64_t sum = 0;
      for (int64_t bytes : live.by_category) sum += bytes;
      EXPECT_EQ(sum, live.total);
      if (live.total > largest.total || id == 0) largest = live;
    });
    EXPECT_EQ(largest.total, plan->lower_bound_bytes) << "seed " << seed;
    EXPECT_EQ(largest.by_category, plan->bytes_at_peak) << "seed " << seed;
  }
}

}  // namespace
}  // namespace shale::testing
