#include "engine/memory/report.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/engine/memory/program_builder.h"

namespace shale::testing {
namespace {

TEST(FormatBytes, HasThreeSignificantDigits) {
  constexpr int64_t kKi = 1024, kMi = kKi * 1024, kGi = kMi * 1024, kTi = kGi * 1024;
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(17), "17 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(1260), "1.23 KiB");
  EXPECT_EQ(FormatBytes(10 * kKi - 1), "10.0 KiB");
  EXPECT_EQ(FormatBytes(100 * kKi - 1), "100 KiB");
  EXPECT_EQ(FormatBytes(512 * kMi), "512 MiB");
  EXPECT_EQ(FormatBytes(1023 * kMi), "1023 MiB");
  EXPECT_EQ(FormatBytes(kGi - 1), "1.0 GiB");
  EXPECT_EQ(FormatBytes(24 * kGi), "24.0 GiB");
  EXPECT_EQ(FormatBytes(31 * kGi + kGi / 5), "31.2 GiB");
  EXPECT_EQ(FormatBytes(2 * kTi), "2.0 TiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
  EXPECT_EQ(FormatBytes(-1536), "-1.5 KiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::min()), "-8.0 EiB");
}

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
