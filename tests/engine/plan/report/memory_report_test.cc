#include <gtest/gtest.h>

#include "engine/plan/report/step_report.h"
#include "tests/engine/compile/memory/program_builder.h"

namespace shale::testing {
namespace {

TEST(MemoryReport, ShowsWhereEveryByteGoes) {
  ProgramBuilder b;
  b.program().units = {"embedding", "blocks.0"};
  b.AddPersistent("blocks.0.m", 40 << 20);
  const BufferId kept = b.AddBuffer("blocks.0.out", 20 << 20, 2);
  const BufferId gathered = b.AddBuffer("blocks.0.gathered", 19 << 20);
  const BufferId later = b.AddBuffer("later", 1000);
  b.program().buffers[kept].category = BufferCategory::kActivations;
  b.program().buffers[gathered].category = BufferCategory::kGatheredParameters;
  b.Loop(2);
  b.Touch(StreamId::kGather, {}, {b.Bytes(gathered)});
  Instruction& peak = b.Touch(StreamId::kCompute, {b.Bytes(gathered)}, {b.Bytes(kept)});
  peak.unit = 1;
  peak.phase = Phase::kBackward;
  b.Touch(StreamId::kCompute, {}, {b.Bytes(later)});
  const StepProgram program = b.Finish();
  MemoryPlan plan = *PlanMemory(program, {});
  plan.peak_bytes = 100 << 20;  // As if the packing wasted 1 MiB.
  EXPECT_EQ(MemoryReport(program, plan), R"(peak 100 MiB (lower bound 99.0 MiB) per rank
  optimizer state         40.0 MiB   40.0 %
  gathered parameters     19.0 MiB   19.0 %
  activations kept        40.0 MiB   40.0 %
  between buffers          1.0 MiB    1.0 %
reached at instruction 1 (LayerNormForward, compute stream, unit blocks.0, backward), in every micro-batch
largest buffers then
   40.0 MiB  blocks.0.m         optimizer state
   40.0 MiB  blocks.0.out       activations kept, 2 slots of 20.0 MiB
   19.0 MiB  blocks.0.gathered  gathered parameters
)");
}

TEST(MemoryReport, OfAnEmptyProgramIsOneLine) {
  const StepProgram program = ProgramBuilder().Finish();
  EXPECT_EQ(MemoryReport(program, *PlanMemory(program, {})), "peak 0 B (lower bound 0 B) per rank\n");
}

}  // namespace
}  // namespace shale::testing
