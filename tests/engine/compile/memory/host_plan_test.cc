#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/compile/memory/plan.h"
#include "kernels/step_scalars.h"

namespace shale::testing {
namespace {

Instruction CopyOf(StepItem item, int64_t elements) {
  Instruction instruction;
  instruction.action = StepItemCopy{.item = item, .device = Tensor::Contiguous(DType::kInt32, {elements})};
  return instruction;
}

// Returns a program that copies tokens of two sizes in three iterations, and totals once.
StepProgram Example() {
  StepProgram program;
  program.instructions = {CopyOf(StepItem::kInputs, 65), CopyOf(StepItem::kInputs, 70), CopyOf(StepItem::kTotals, 4)};
  program.loops = {{.begin = 0, .end = 2, .repeat = 3}, {.begin = 2, .end = 3}};
  return program;
}

TEST(StepItemLayout, EveryIterationOfEveryItemHasAPlaceOfItsOwn) {
  const StepItemLayout layout(Example());
  EXPECT_EQ(layout.range(StepItem::kInputs).iteration_bytes, 70 * 4);
  EXPECT_EQ(layout.range(StepItem::kInputs).size_bytes(), 3 * 70 * 4);
  EXPECT_EQ(layout.range(StepItem::kTotals).size_bytes(), 4 * 4);
  EXPECT_EQ(layout.range(StepItem::kLogits).size_bytes(), 0);
  std::vector<std::pair<int64_t, int64_t>> ends;
  for (StepItem item : {StepItem::kInputs, StepItem::kTotals}) {
    const StepItemLayout::Range& range = layout.range(item);
    EXPECT_EQ(range.offset_bytes % 256, 0);
    ends.emplace_back(range.offset_bytes, range.offset_bytes + range.size_bytes());
  }
  std::sort(ends.begin(), ends.end());
  EXPECT_LE(ends[0].second, ends[1].first);
  EXPECT_LE(ends[1].second, layout.size_bytes());
}

// Programs can share memory, because only one runs at a time.
TEST(HostMemoryPlan, ProgramsShareThePlaceOfTheLargest) {
  StepProgram small = Example();
  small.loops[0].repeat = 1;
  StepProgram large = Example();
  large.loops[0].repeat = 100;
  const MemoryPlan none, some{.host_bytes = 100}, more{.host_bytes = 9000};
  const HostMemoryPlan plan = PlanHostMemory({{small, more}, {large, some}}, 5000);
  EXPECT_GE(plan.items_bytes, StepItemLayout(large).size_bytes());
  EXPECT_LT(plan.items_bytes, StepItemLayout(large).size_bytes() + 4096);
  EXPECT_EQ(plan.items_bytes, PlanHostMemory({{large, none}}, 0).items_bytes);
  EXPECT_EQ(plan.offload_bytes, 12288);
  EXPECT_EQ(plan.staging_bytes, 8192);
  EXPECT_EQ(plan.total_bytes(), plan.transfer_bytes + 8192 + plan.items_bytes + 12288);
  EXPECT_EQ(plan.transfer_bytes % 4096, 0);
  EXPECT_EQ(PlanHostMemory({}, 0).total_bytes(), plan.transfer_bytes);
}

}  // namespace
}  // namespace shale::testing
