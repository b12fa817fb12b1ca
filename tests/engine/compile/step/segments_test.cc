// Tests which blocks form segments, the order of visits, and what a program with segments keeps and issues.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/compile/program/accesses.h"
#include "engine/compile/program/live_bytes.h"
#include "engine/compile/step/options.h"
#include "engine/compile/step/visits.h"
#include "tests/engine/compile/step/planned_decoder.h"

namespace shale::testing {
namespace {

TEST(SegmentsOf, DividesEachRunOfChosenBlocks) {
  using Segments = std::vector<Segment>;
  EXPECT_EQ(SegmentsOf({.layers = 7}, 3), (Segments{{0, 3}, {3, 3}, {6, 1}}));
  EXPECT_EQ(SegmentsOf({.layers = 7}, 7), (Segments{{0, 7}}));
  EXPECT_EQ(SegmentsOf({.layers = 7}, 1), Segments());
  // No segment reaches over the blocks that are not chosen.
  EXPECT_EQ(SegmentsOf({.layers = 7, .first_layers = 3, .last_layers = 2}, 2), (Segments{{0, 2}, {2, 1}, {5, 2}}));
  EXPECT_EQ(SegmentsOf({.layers = 5, .first_layers = 3, .last_layers = 2}, 4), (Segments{{0, 4}, {4, 1}}));
}

TEST(SqrtSegmentBlocks, HoldsTheFewestBoundariesAboutTwiceTheSquareRoot) {
  for (int64_t layers = 2; layers <= 200; ++layers) {
    const ChosenBlocks all = {.layers = layers};
    const int64_t n = SqrtSegmentBlocks(all), held = BoundariesHeld(all, n);
    const double root = std::sqrt(static_cast<double>(layers));
    for (int64_t other = 1; other <= layers; ++other) EXPECT_LE(held, BoundariesHeld(all, other)) << layers;
    EXPECT_LE(std::abs(static_cast<double>(held) - 2 * root), 1) << layers;
    EXPECT_LE(std::abs(static_cast<double>(n) - root), 1) << layers;
  }
  EXPECT_EQ(SqrtSegmentBlocks({.layers = 126}), 11);
  EXPECT_EQ(BoundariesHeld({.layers = 126}, 11), 22);
  EXPECT_EQ(BoundariesHeld({.layers = 126}, 1), 126);
}

std::string Names(const std::vector<Visit>& visits) {
  static constexpr const char* kMarks[] = {"", "", "'", "<"};  // By VisitWork.
  return absl::StrJoin(visits, " ", [](std::string* out, const Visit& visit) {
    absl::StrAppend(out, visit.unit, kMarks[static_cast<int>(visit.work)]);
  });
}

// Returns a model with units like those of a decoder. The first unit, the last unit, and the units in `others` are not
// blocks. All units from `first_backward` on have a backward.
ModelGraph UnitsOf(int blocks, const std::vector<int>& others = {}, int first_backward = 0) {
  ModelGraph model;
  model.units.emplace_back();
  for (int layer = 0; layer < blocks;) {
    UnitGraph& unit = model.units.emplace_back();
    const int index = static_cast<int>(model.units.size()) - 1;
    if (std::find(others.begin(), others.end(), index) == others.end()) unit.layer = layer++;
  }
  for (int u = first_backward; u < std::ssize(model.units); ++u) model.units[u].output_gradient = 0;
  model.units.emplace_back();
  return model;
}

TEST(Visits, ASegmentRunsForwardAgainBeforeItsBackward) {
  const auto visits = [](ModelGraph model, const std::vector<Segment>& segments, bool training = true) {
    if (!training) model.mode = GraphMode::kEvaluation;
    return Names(PlanVisits(SegmentRolesOf(model, segments), FirstBackward(model)));
  };
  const ModelGraph five = UnitsOf(5);
  EXPECT_EQ(visits(five, {}), "0 1 2 3 4 5 6 5< 4< 3< 2< 1< 0<");
  EXPECT_EQ(visits(five, {{0, 3}, {3, 2}}), "0 1 2 3 4 5 6 4' 5< 4< 1' 2' 3< 2< 1< 0<");
  EXPECT_EQ(visits(five, {{1, 3}}), "0 1 2 3 4 5 6 5< 2' 3' 4< 3< 2< 1< 0<");
  EXPECT_EQ(visits(five, {{0, 3}, {3, 2}}, /*training=*/false), "0 1 2 3 4 5 6");
  // A unit between blocks that is not a block divides their segment.
  EXPECT_EQ(visits(UnitsOf(4, {3}), {{0, 4}}), "0 1 2 3 4 5 6 4' 5< 4< 3< 1' 2< 1< 0<");
  // Backward stops at the lowest unit that trains, and the units below it are in no segment.
  EXPECT_EQ(visits(UnitsOf(5, {}, 2), {{0, 3}, {3, 2}}), "0 1 2 3 4 5 6 4' 5< 4< 2' 3< 2<");
  EXPECT_EQ(visits(UnitsOf(5, {}, 3), {{0, 3}, {3, 2}}), "0 1 2 3 4 5 6 4' 5< 4< 3<");
  EXPECT_EQ(visits(UnitsOf(5, {}, 6), {{0, 3}, {3, 2}}), "0 1 2 3 4 5 6");
}

constexpr int64_t kSegmentedLayers = 5;  // In segments of 3: blocks 0 to 2, and 3 and 4.

StepOptions WithSegments(const ActivationOptions& activations, Accumulation accumulation = Accumulation::kSharded) {
  return {.accumulation = accumulation, .mesh = {.shard = 2}, .micro_batches = 2, .activations = activations};
}

// Returns what the instructions on `stream` of one step do for blocks, such as "forward blocks.0": one entry for each
// run of instructions of the same unit and phase. The recomputation in a unit's own backward counts as backward.
std::vector<std::string> VisitsOfBlocks(const StepProgram& program, StreamId stream) {
  std::vector<std::string> work;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.stream != stream || instruction.unit < 0) continue;
    const std::string& unit = program.units[instruction.unit];
    if (!absl::StartsWith(unit, "blocks.")) continue;
    const std::string entry = absl::StrCat(ToString(instruction.phase), " ", unit);
    const std::string backward = absl::StrCat("backward ", unit), recompute = absl::StrCat("recompute ", unit);
    if (!work.empty() && work.back() == backward) continue;
    // The unit's recomputation just before its backward belongs to that backward.
    const bool recomputed = !work.empty() && entry == backward && work.back() == recompute;
    if (recomputed) work.back() = backward;
    if (work.empty() || work.back() != entry) work.push_back(entry);
  }
  return work;
}

TEST(Segments, TheProgramRunsTheirBlocksForwardAgain) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kBlock}) {
      const StepProgram program =
          PlanDecoder(WithSegments({.preset = preset, .segment_blocks = 3}, accumulation), kSegmentedLayers).program;
      const std::vector<std::string> expected = {
          "forward blocks.0",   "forward blocks.1",  "forward blocks.2",  "forward blocks.3",   "forward blocks.4",
          "recompute blocks.3", "backward blocks.4", "backward blocks.3", "recompute blocks.0", "recompute blocks.1",
          "backward blocks.2",  "backward blocks.1", "backward blocks.0"};
      // Gathers are issued in this order too: each of these visits gathers its parameters once.
      for (StreamId stream : {StreamId::kCompute, StreamId::kGather}) {
        EXPECT_EQ(VisitsOfBlocks(program, stream), expected) << ToString(accumulation) << " " << ToString(preset);
      }
    }
  }
}

TEST(Segments, AVisitWaitsForNoGatherOfALaterOne) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    const StepProgram program =
        PlanDecoder(WithSegments({.segment_blocks = 3}, accumulation), kSegmentedLayers).program;
    // The g-th gather is for the g-th visit. Only the last visit, the embedding's backward, reads no weights.
    std::vector<int> units, gathered, visit_of(program.instructions.size(), -1);
    for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
      const Instruction& instruction = program.instructions[id];
      if (instruction.unit < 0) continue;
      if (instruction.stream == StreamId::kGather) {
        visit_of[id] = static_cast<int>(gathered.size());
        gathered.push_back(instruction.unit);
      } else if (instruction.stream == StreamId::kCompute) {
        if (units.empty() || units.back() != instruction.unit) units.push_back(instruction.unit);
        visit_of[id] = static_cast<int>(units.size()) - 1;
      }
    }
    ASSERT_EQ(units.back(), 0);
    units.pop_back();
    ASSERT_EQ(gathered, units) << ToString(accumulation);
    for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
      if (program.instructions[id].stream != StreamId::kCompute) continue;
      for (InstructionId waited : program.instructions[id].waits) {
        if (waited > id || program.instructions[waited].stream != StreamId::kGather) continue;
        EXPECT_LE(visit_of[waited], visit_of[id]) << ToString(accumulation) << " " << id;
      }
    }
  }
}

// Returns the largest number of buffers with this category and a name that ends in `suffix` that live at once.
int64_t MostAtOnce(const StepProgram& program, BufferCategory category, absl::string_view suffix) {
  const std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
  std::vector<int64_t> change(program.instructions.size() + 1, 0);
  for (size_t b = 0; b < lifetimes.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (!lifetimes[b].used() || buffer.category != category || !absl::EndsWith(buffer.name, suffix)) continue;
    ++change[lifetimes[b].first];
    --change[lifetimes[b].last + 1];
  }
  int64_t live = 0, most = 0;
  for (int64_t c : change) most = std::max(most, live += c);
  return most;
}

TEST(Segments, OneBoundaryOfEachWaitsForBackward) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    const StepProgram program =
        PlanDecoder(WithSegments({.segment_blocks = 3}, accumulation), kSegmentedLayers).program;
    const std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
    InstructionId head = 0;  // Where the head computes first: forward ends, and backward begins.
    while (program.instructions[head].unit != kSegmentedLayers + 1 ||
           program.instructions[head].stream != StreamId::kCompute) {
      ++head;
    }
    std::vector<std::string> waiting;
    for (size_t b = 0; b < lifetimes.size(); ++b) {
      const Buffer& buffer = program.buffers[b];
      const bool activation =
          buffer.category == BufferCategory::kActivations || buffer.category == BufferCategory::kActivationBoundaries;
      if (activation && lifetimes[b].first < head && lifetimes[b].last > head) waiting.push_back(buffer.name);
    }
    // The inputs of blocks 0 and 3.
    EXPECT_NE(std::find(waiting.begin(), waiting.end(), "embedding.out"), waiting.end()) << absl::StrJoin(waiting, " ");
    EXPECT_NE(std::find(waiting.begin(), waiting.end(), "blocks.2.out"), waiting.end()) << absl::StrJoin(waiting, " ");
    for (const char* block : {"blocks.0.", "blocks.1.", "blocks.3."}) {
      for (const std::string& name : waiting) EXPECT_FALSE(absl::StartsWith(name, block)) << name;
    }
    // The boundaries inside a segment live only from its second forward on.
    EXPECT_EQ(MostAtOnce(program, BufferCategory::kActivationBoundaries, ".out.again"), 2);
  }
}

TEST(Segments, HoldFewerBoundariesThanBlocks) {
  constexpr int64_t kMany = 16;
  const auto boundaries = [](int64_t segment_blocks) {
    const ActivationOptions options = {.preset = CheckpointingPreset::kBlock, .segment_blocks = segment_blocks};
    const Planned planned = PlanDecoder(WithSegments(options), kMany);
    return planned.plan.bytes_at_peak[static_cast<int>(BufferCategory::kActivationBoundaries)] / (2 * 64 * 8 * 4);
  };
  // At the peak two gradients of boundaries live as well.
  EXPECT_LE(boundaries(SqrtSegmentBlocks({.layers = kMany})), BoundariesHeld({.layers = kMany}, 4) + 2);
  EXPECT_GE(boundaries(1), kMany);
}

TEST(Segments, OfThePresetNoneKeepAllOfTheirBlocksButTheLast) {
  const auto kept = [](const ActivationOptions& options, absl::string_view block) {
    const StepProgram program = PlanDecoder(WithSegments(options), kSegmentedLayers).program;
    const std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
    std::vector<std::string> names;
    for (size_t b = 0; b < lifetimes.size(); ++b) {
      const Buffer& buffer = program.buffers[b];
      if (lifetimes[b].used() && buffer.category == BufferCategory::kActivations &&
          absl::StartsWith(buffer.name, block)) {
        names.push_back(buffer.name);
      }
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kCheap}) {
    const ActivationOptions in_segments = {.preset = preset, .segment_blocks = 3}, alone = {.preset = preset};
    EXPECT_EQ(kept(in_segments, "blocks.1."), kept(alone, "blocks.1.")) << ToString(preset);
    EXPECT_EQ(kept(in_segments, "blocks.2."), std::vector<std::string>()) << ToString(preset);
    EXPECT_EQ(kept(in_segments, "blocks.4."), std::vector<std::string>()) << ToString(preset);
  }
}

TEST(Segments, OfOneBlockAreNoSegments) {
  EXPECT_EQ(
      DumpProgram(PlanDecoder(WithSegments({.preset = CheckpointingPreset::kCheap, .segment_blocks = 1}), 3).program),
      DumpProgram(PlanDecoder(WithSegments({.preset = CheckpointingPreset::kCheap}), 3).program));
  // Programs without backward have nothing to recompute.
  EXPECT_EQ(DumpProgram(PlanDecoder(WithSegments({.segment_blocks = 3}), 3, GraphMode::kEvaluation).program),
            DumpProgram(PlanDecoder(WithSegments({}), 3, GraphMode::kEvaluation).program));
}

// In the second forward only those ops run on which the block's output or a kept value depends. With preset NONE no op
// runs a third time.
TEST(Segments, RunEachOpOnceAgain) {
  const auto count = [](const ActivationOptions& options) {
    std::map<std::string, int> ops;
    for (const Instruction& instruction : PlanDecoder(WithSegments(options), kSegmentedLayers).program.instructions) {
      if (instruction.phase == Phase::kRecompute && std::holds_alternative<Op>(instruction.action)) {
        ++ops[absl::StrCat(instruction.unit - 1, " ", NameOf(instruction))];
      }
    }
    return ops;
  };
  const std::map<std::string, int> in_segments = count({.segment_blocks = 3});
  for (const char* block : {"0", "1", "3"}) {
    EXPECT_EQ(in_segments.at(absl::StrCat(block, " MatMul")), 4) << block;
    EXPECT_EQ(in_segments.at(absl::StrCat(block, " SwiGluForward")), 1) << block;
  }
  // The last block of a segment runs like one of preset BLOCK.
  const std::map<std::string, int> alone = count({.preset = CheckpointingPreset::kBlock});
  for (const auto& [op, times] : alone) {
    if (op[0] == '2' || op[0] == '4') {
      EXPECT_EQ(in_segments.at(op), times) << op;
    }
  }
}

}  // namespace
}  // namespace shale::testing
