// Collectives run while the units between them compute.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/step/compile.h"
#include "engine/compile/step/options_enums.h"
#include "tests/engine/compile/step/planned_decoder.h"

namespace shale::testing {
namespace {

constexpr int64_t kOverlappedLayers = 5;

std::string Describe(const StepOptions& o) {
  return absl::StrCat(ToString(o.strategy), " ", ToString(o.accumulation), " R=", o.mesh.replicate,
                      " K=", o.micro_batches, " ", ToString(o.activations.preset), " segments of ",
                      o.activations.segment_blocks);
}

std::vector<StepOptions> AllOptions(const std::vector<Strategy>& strategies) {
  std::vector<StepOptions> all;
  for (const Strategy strategy : strategies) {
    for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
      // This combination does not exist: its gradients would not be sharded.
      if (strategy == Strategy::kZero2 && accumulation == Accumulation::kNoSync) continue;
      for (const int64_t micro_batches : {1, 3}) {
        for (const CheckpointingPreset preset :
             {CheckpointingPreset::kNone, CheckpointingPreset::kCheap, CheckpointingPreset::kBlock}) {
          for (const auto& [segment_blocks, replicas] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {1, 3}}) {
            if (segment_blocks > 1 && preset == CheckpointingPreset::kCheap) continue;
            all.push_back({.strategy = strategy,
                           .accumulation = accumulation,
                           .mesh = {.replicate = replicas, .shard = 2},
                           .micro_batches = micro_batches,
                           .activations = {.preset = preset, .segment_blocks = segment_blocks}});
          }
        }
      }
    }
  }
  return all;
}

// Appends the instructions of the same iteration, on streams other than compute, that must have finished before `id`
// may run: those that it waits for, those that they wait for, and those that precede them on their stream.
void AppendAwaited(const StepProgram& program, InstructionId id, std::set<InstructionId>& awaited) {
  const auto visit = [&](InstructionId other) {
    if (other >= id || program.instructions[other].stream == StreamId::kCompute) return;
    if (awaited.insert(other).second) AppendAwaited(program, other, awaited);
  };
  for (const InstructionId waited : program.instructions[id].waits) visit(waited);
  const StreamId stream = program.instructions[id].stream;
  if (stream == StreamId::kCompute) return;
  for (InstructionId before = id - 1; before >= 0; --before) {
    if (program.instructions[before].stream == stream) return visit(before);
  }
}

// Calls visitor(waiting, awaited) for every compute instruction of a unit's backward, including recomputation, and
// every instruction on `stream` that must have finished before it.
template <class Visitor>
void VisitBackwardWaits(const StepProgram& program, StreamId stream, Visitor&& visitor) {
  for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
    const Instruction& waiting = program.instructions[id];
    const bool backward = waiting.phase == Phase::kBackward || waiting.phase == Phase::kRecompute;
    if (waiting.stream != StreamId::kCompute || !backward || waiting.unit < 0) continue;
    std::set<InstructionId> awaited;
    AppendAwaited(program, id, awaited);
    for (const InstructionId other : awaited) {
      const Instruction& instruction = program.instructions[other];
      if (instruction.stream == stream && instruction.unit >= 0) visitor(waiting, instruction);
    }
  }
}

TEST(Overlap, AUnitsBackwardWaitsForNoReductionOfTheUnitBefore) {
  for (const StepOptions& options : AllOptions({Strategy::kZero2, Strategy::kFullShard})) {
    const Planned planned = PlanDecoder(options, kOverlappedLayers);
    int reductions = 0;
    for (const Instruction& instruction : planned.program.instructions) {
      const auto* collective = std::get_if<Collective>(&instruction.action);
      reductions += collective != nullptr && collective->kind == CollectiveKind::kReduceScatterSum;
    }
    EXPECT_EQ(reductions, kOverlappedLayers + 2) << Describe(options);
    VisitBackwardWaits(
        planned.program, StreamId::kReduce, [&](const Instruction& waiting, const Instruction& reduction) {
          // Before the backward of the second block of a segment its first block runs forward again: the reduction
          // overlaps with that.
          if (options.activations.segment_blocks == 2 && waiting.unit % 2 == 0) return;
          EXPECT_NE(reduction.unit, waiting.unit + 1)
              << Describe(options) << ": " << NameOf(waiting) << " of " << planned.program.units[waiting.unit]
              << " waits for " << NameOf(reduction) << " of " << planned.program.units[reduction.unit];
        });
  }
}

// The all-reduce of each group over the replicas is issued before the backward of the next unit, and only in the last
// micro-batch.
TEST(Overlap, ReplicasSumTheGradientsOfAUnitDuringTheBackwardOfTheNext) {
  for (const StepOptions& options : AllOptions({Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard})) {
    if (options.mesh.replicate == 1) continue;
    if (!CheckCombination(options.strategy, options.accumulation).ok()) continue;
    const StepProgram program = PlanDecoder(options, kOverlappedLayers).program;
    std::set<int> summed;  // Units.
    for (const Instruction& instruction : program.instructions) {
      const auto* collective = std::get_if<Collective>(&instruction.action);
      if (collective != nullptr && collective->axis == MeshAxis::kReplicate) {
        EXPECT_EQ(instruction.stream, StreamId::kReduce) << Describe(options);
        EXPECT_EQ(instruction.last_iteration_only,
                  options.accumulation != Accumulation::kLayered && options.micro_batches > 1)
            << Describe(options);
        EXPECT_TRUE(summed.insert(instruction.unit).second) << Describe(options);
      } else if (instruction.stream == StreamId::kCompute && instruction.phase == Phase::kBackward &&
                 instruction.unit < kOverlappedLayers + 1) {
        EXPECT_TRUE(summed.contains(instruction.unit + 1)) << Describe(options) << ": " << instruction.unit;
      }
    }
    EXPECT_EQ(std::ssize(summed), kOverlappedLayers + 2) << Describe(options);
  }
}

TEST(Overlap, AUnitsBackwardWaitsForNoGatherOfTheNextOne) {
  for (const StepOptions& options : AllOptions({Strategy::kFullShard})) {
    const Planned planned = PlanDecoder(options, kOverlappedLayers);
    int waits = 0;
    VisitBackwardWaits(planned.program, StreamId::kGather, [&](const Instruction& waiting, const Instruction& gather) {
      if (gather.phase != Phase::kBackward) return;
      ++waits;
      EXPECT_GE(gather.unit, waiting.unit) << Describe(options) << ": " << planned.program.units[waiting.unit]
                                           << " waits for the gather of " << planned.program.units[gather.unit];
    });
    EXPECT_GT(waits, 0) << Describe(options);
  }
}

}  // namespace
}  // namespace shale::testing
