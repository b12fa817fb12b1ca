// Collectives run beside the compute of the units that come between.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/step/compile.h"
#include "tests/engine/step/planned_decoder.h"

namespace shale::testing {
namespace {

constexpr int64_t kLayers = 5;

std::string Describe(const StepOptions& o) {
  return absl::StrCat(ToString(o.schedule), " K=", o.micro_batches, " ", ToString(o.retention.preset));
}

std::vector<StepOptions> AllOptions() {
  std::vector<StepOptions> all;
  for (const Schedule schedule : {Schedule::kSharded, Schedule::kDeferred, Schedule::kLayered}) {
    for (const int64_t micro_batches : {1, 3}) {
      for (const RetentionPreset preset :
           {RetentionPreset::kKeepAll, RetentionPreset::kCheap, RetentionPreset::kBlock}) {
        all.push_back(
            {.schedule = schedule, .ranks = 2, .micro_batches = micro_batches, .retention = {.preset = preset}});
      }
    }
  }
  return all;
}

// The instructions of the stream that compute waits for, by the block whose backward does.
template <class Visitor>
void VisitBackwardWaits(const StepProgram& program, StreamId stream, Visitor&& visitor) {
  for (const Instruction& waiting : program.instructions) {
    if (waiting.stream != StreamId::kCompute || waiting.phase != Phase::kBackward || waiting.unit < 0) continue;
    for (const InstructionId id : waiting.waits) {
      const Instruction& other = program.instructions[id];
      if (other.stream == stream && other.unit >= 0) visitor(waiting, other);
    }
  }
}

TEST(Overlap, AUnitsBackwardWaitsForNoReductionOfTheUnitBefore) {
  for (const StepOptions& options : AllOptions()) {
    const Planned planned = PlanDecoder(options, kLayers);
    int reductions = 0;
    for (const Instruction& instruction : planned.program.instructions) {
      const auto* collective = std::get_if<Collective>(&instruction.action);
      reductions += collective != nullptr && collective->kind == CollectiveKind::kReduceScatterSum;
    }
    EXPECT_EQ(reductions, kLayers + 2) << Describe(options);
    VisitBackwardWaits(planned.program, StreamId::kReduce,
                       [&](const Instruction& waiting, const Instruction& reduction) {
                         EXPECT_NE(reduction.unit, waiting.unit + 1)
                             << Describe(options) << ": " << planned.program.units[waiting.unit] << " waits for "
                             << NameOf(reduction) << " of " << planned.program.units[reduction.unit];
                       });
  }
}

TEST(Overlap, AUnitsBackwardWaitsForNoGatherOfTheNextOne) {
  for (const StepOptions& options : AllOptions()) {
    const Planned planned = PlanDecoder(options, kLayers);
    int waits = 0;
    VisitBackwardWaits(planned.program, StreamId::kGather, [&](const Instruction& waiting, const Instruction& gather) {
      ++waits;
      EXPECT_GE(gather.unit, waiting.unit) << Describe(options) << ": " << planned.program.units[waiting.unit]
                                           << " waits for the gather of " << planned.program.units[gather.unit];
    });
    EXPECT_GT(waits, 0) << Describe(options);
  }
}

}  // namespace
}  // namespace shale::testing
