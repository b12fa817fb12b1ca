// Tests which tensors are offloaded, when they are copied, and how much memory that saves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/compile/program/accesses.h"
#include "engine/compile/step/passes.h"
#include "tests/engine/compile/step/planned_decoder.h"

namespace shale::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kOffloadedLayers = 6, kMicroBatches = 3;

Planned CompileDecoder(const ActivationOptions& activations, Accumulation accumulation = Accumulation::kSharded,
                       int64_t layers = kOffloadedLayers, GraphMode mode = GraphMode::kTraining) {
  return PlanDecoder(
      {.accumulation = accumulation, .mesh = {.shard = 2}, .micro_batches = kMicroBatches, .activations = activations},
      layers, mode);
}

// Returns the names of the host buffers that transfers in one direction access, in issue order.
std::vector<std::string> Moved(const StepProgram& program, bool to_host) {
  std::vector<std::string> names;
  for (const Instruction& instruction : program.instructions) {
    const auto* transfer = std::get_if<Transfer>(&instruction.action);
    if (transfer == nullptr || transfer->to_host != to_host) continue;
    EXPECT_EQ(instruction.stream, StreamId::kCopy);
    EXPECT_EQ(program.buffers[transfer->host.where.symbol].memory, MemoryKind::kHost);
    EXPECT_EQ(program.buffers[transfer->device.where.symbol].memory, MemoryKind::kDevice);
    names.push_back(program.buffers[transfer->host.where.symbol].name);
  }
  return names;
}

std::set<std::string> Set(const std::vector<std::string>& names) { return {names.begin(), names.end()}; }

TEST(Offload, WhatIsNamedGoesToTheHostOnceAndComesBackInReverse) {
  const Planned planned = CompileDecoder({.offload = {"blocks.*.ffn.gate_up"}});
  const std::vector<std::string> offloaded = Moved(planned.program, true);
  std::vector<std::string> fetched = Moved(planned.program, false);
  // The last block's tensor stays on the device, because it is used again too soon.
  EXPECT_EQ(offloaded, (std::vector<std::string>{"blocks.0.ffn.gate_up", "blocks.1.ffn.gate_up", "blocks.2.ffn.gate_up",
                                                 "blocks.3.ffn.gate_up", "blocks.4.ffn.gate_up"}));
  std::reverse(fetched.begin(), fetched.end());
  EXPECT_EQ(fetched, offloaded);
  // All of them are in host memory at the same time.
  const int64_t gate_up_bytes = 2 * 64 * 2 * 12 * 4;
  EXPECT_EQ(planned.plan.host_bytes, 5 * gate_up_bytes);
}

TEST(Offload, TheArenaKeepsNoRoomForThem) {
  const auto kept_at_peak = [](const Planned& planned) {
    return planned.plan.bytes_at_peak[static_cast<int>(BufferCategory::kActivations)] +
           planned.plan.bytes_at_peak[static_cast<int>(BufferCategory::kActivationBoundaries)];
  };
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    const Planned kept = CompileDecoder({}, accumulation), offloaded = CompileDecoder({.offload = {"*"}}, accumulation);
    EXPECT_LT(offloaded.plan.peak_bytes, kept.plan.peak_bytes) << ToString(accumulation);
    // At most three of the six blocks are in the arena: one in use, one being copied, and one that is used again too
    // soon.
    EXPECT_LT(kept_at_peak(offloaded), 0.6 * static_cast<double>(kept_at_peak(kept))) << ToString(accumulation);
    // Only host memory grows with the number of blocks.
    const Planned twice = CompileDecoder({.offload = {"*"}}, accumulation, 2 * kOffloadedLayers);
    EXPECT_EQ(kept_at_peak(twice), kept_at_peak(offloaded)) << ToString(accumulation);
    EXPECT_GE(twice.plan.host_bytes, 2 * offloaded.plan.host_bytes) << ToString(accumulation);
  }
}

TEST(Offload, BlockInputsGoToo) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    const Planned planned = CompileDecoder({.preset = CheckpointingPreset::kBlock, .offload = {"*"}}, accumulation);
    const std::vector<std::string> offloaded = Moved(planned.program, true);
    EXPECT_THAT(offloaded, Contains(HasSubstr("embedding"))) << ToString(accumulation);
    const int64_t iterations = accumulation == Accumulation::kLayered ? kMicroBatches : 1;
    // The inputs of blocks 0 to 4. In LAYERED also that of block 5, because each micro-batch's input waits while the
    // other micro-batches run.
    const int64_t tensors = accumulation == Accumulation::kLayered ? 6 : 5;
    EXPECT_EQ(offloaded.size(), tensors) << ToString(accumulation);
    EXPECT_EQ(Set(Moved(planned.program, false)), Set(offloaded)) << ToString(accumulation);
    EXPECT_EQ(planned.plan.host_bytes, iterations * tensors * 2 * 64 * 8 * 4) << ToString(accumulation);
  }
}

TEST(Offload, TheInputsOfSegmentsComeBackWhenTheyRunForwardAgain) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    const StepProgram program =
        CompileDecoder({.preset = CheckpointingPreset::kBlock, .segment_blocks = 3, .offload = {"*.out"}}, accumulation)
            .program;
    // The boundaries inside the segments (blocks 0 to 2 and 3 to 5) are not offloaded.
    const std::set<std::string> inputs = {"embedding.out", "blocks.2.out"};
    EXPECT_EQ(Set(Moved(program, true)), inputs) << ToString(accumulation);
    EXPECT_EQ(Set(Moved(program, false)), inputs) << ToString(accumulation);
    const std::vector<Instruction>& all = program.instructions;
    std::set<std::string> first_readers;
    for (InstructionId id = 0; id < std::ssize(all); ++id) {
      const auto* fetch = std::get_if<Transfer>(&all[id].action);
      if (fetch == nullptr || fetch->to_host || all[id].phase != Phase::kRecompute) continue;
      first_readers.insert(program.units[all[id].unit]);
    }
    EXPECT_EQ(first_readers, (std::set<std::string>{"blocks.0", "blocks.3"})) << ToString(accumulation);
  }
}

TEST(Offload, CopiesRunBesideTheUnitsThatComeBetween) {
  const Planned planned = CompileDecoder({.offload = {"blocks.2.ffn.gate_up"}});
  const std::vector<Instruction>& all = planned.program.instructions;
  InstructionId out = -1, back = -1, written = -1, read = -1;
  const auto touches = [&](InstructionId id, BufferId buffer) {
    bool found = false;
    VisitInstruction(all[id], false,
                     [&](absl::string_view, const Tensor& t, Access) { found |= t.where.symbol == buffer; });
    return found && all[id].stream == StreamId::kCompute;
  };
  for (InstructionId id = 0; id < std::ssize(all); ++id) {
    if (const auto* t = std::get_if<Transfer>(&all[id].action)) (t->to_host ? out : back) = id;
  }
  const auto unit_at = [&](InstructionId id) { return planned.program.units[all[id].unit]; };
  const BufferId before = std::get<Transfer>(all[out].action).device.where.symbol;
  const BufferId after = std::get<Transfer>(all[back].action).device.where.symbol;
  for (InstructionId id = 0; id < std::ssize(all); ++id) {
    if (touches(id, before)) written = id;
    if (touches(id, after) && read < 0) read = id;
  }
  ASSERT_GE(written, 0);
  ASSERT_GE(read, 0);
  EXPECT_EQ(out, written + 1);
  EXPECT_EQ(unit_at(out), "blocks.2");
  EXPECT_EQ(unit_at(read), "blocks.2");
  // The fetch is issued when the unit that runs before it begins its backward.
  InstructionId next_compute = back;
  while (all[next_compute].stream != StreamId::kCompute) ++next_compute;
  EXPECT_EQ(unit_at(next_compute), "blocks.3");
  EXPECT_EQ(all[next_compute].phase, Phase::kBackward);
  // No instruction of the next block's forward waits for the copy.
  for (InstructionId id = out + 1; id < std::ssize(all); ++id) {
    if (all[id].unit >= 0 && unit_at(id) == "blocks.3" && all[id].phase == Phase::kForward) {
      EXPECT_THAT(all[id].waits, Not(Contains(out))) << id;
    }
  }
}

// In LAYERED the copy of a micro-batch runs beside the next one: only what writes a tensor again waits for its copy,
// and a copy back waits only for what reads the tensor of the micro-batch before.
TEST(Offload, LayeredCopiesRunBesideTheNextMicroBatch) {
  const StepProgram program = CompileDecoder({.offload = {"blocks.*"}}, Accumulation::kLayered).program;
  const auto touches = [&](InstructionId id, BufferId buffer) {
    bool found = false;
    VisitInstruction(program.instructions[id], false,
                     [&](absl::string_view, const Tensor& t, Access) { found |= t.where.symbol == buffer; });
    return found;
  };
  int waits = 0;
  for (const Loop& loop : program.loops) {
    if (loop.repeat == 1) continue;
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      for (const InstructionId wait : program.instructions[id].waits) {
        if (wait <= id || wait >= loop.end) continue;  // It is no instruction of the previous iteration.
        const InstructionId copies[] = {id, wait};
        for (const InstructionId copy : copies) {
          const auto* transfer = std::get_if<Transfer>(&program.instructions[copy].action);
          if (transfer == nullptr) continue;
          ++waits;
          EXPECT_TRUE(touches(copy == id ? wait : id, transfer->device.where.symbol)) << id << " waits for " << wait;
        }
      }
    }
  }
  EXPECT_GT(waits, 0);
}

TEST(Offload, NothingGoesThatIsNotNamedOrNotKeptForLong) {
  EXPECT_THAT(Moved(CompileDecoder({.offload = {"block.*", "*.ffn"}}).program, true), IsEmpty());
  // Gradients, weights and tensors used within one unit only are not activations that wait for backward.
  EXPECT_THAT(Moved(CompileDecoder({.offload = {"*.gradient", "*.weight", "*.logits", "head*"}}).program, true),
              IsEmpty());
  EXPECT_THAT(Moved(CompileDecoder({.offload = {"*"}}, Accumulation::kSharded, 1).program, true),
              Each(HasSubstr("blocks.0")));
  EXPECT_THAT(
      Moved(
          CompileDecoder({.offload = {"*"}}, Accumulation::kSharded, kOffloadedLayers, GraphMode::kEvaluation).program,
          true),
      IsEmpty());
}

TEST(Offload, WhatBackwardWritesToStays) {
  // Backward computes the norm again for its output, which also writes the kept 1 / rms again. That tensor is therefore
  // not offloaded.
  const std::vector<std::string> moved =
      Moved(CompileDecoder({.patterns = {"blocks.*.attention_norm"}, .offload = {"*.rstd"}}).program, true);
  EXPECT_THAT(moved, Not(IsEmpty()));
  EXPECT_THAT(moved, Each(HasSubstr("ffn_norm.rstd")));
}

TEST(Offload, WithoutPatternsTheProgramIsAsItWas) {
  StepProgram program = CompileDecoder({}).program;
  const std::string before = DumpProgram(program);
  EXPECT_TRUE(OffloadActivations(program, {}).ok());
  EXPECT_EQ(DumpProgram(program), before);
}

}  // namespace
}  // namespace shale::testing
