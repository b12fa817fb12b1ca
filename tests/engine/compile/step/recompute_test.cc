// Tests which ops backward computes again, and when.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/activation.h"
#include "tests/engine/compile/step/planned_decoder.h"

namespace shale::testing {
namespace {

// Returns the compute instructions of a unit's backward in order, such as "recompute RmsNormForward" or "backward
// MatMul".
std::vector<std::string> BackwardOf(const StepProgram& program, absl::string_view unit) {
  std::vector<std::string> lines;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.unit < 0 || program.units[instruction.unit] != unit) continue;
    if (instruction.phase != Phase::kBackward && instruction.phase != Phase::kRecompute) continue;
    if (instruction.stream == StreamId::kCompute) {
      lines.push_back(absl::StrCat(ToString(instruction.phase), " ", NameOf(instruction)));
    }
  }
  return lines;
}

// Returns how many instructions are this backward op and also compute the result of its forward op.
template <class Backward>
int WithValue(const StepProgram& program) {
  int count = 0;
  for (const Instruction& instruction : program.instructions) {
    const Op* op = std::get_if<Op>(&instruction.action);
    const auto* backward = op == nullptr ? nullptr : op->As<Backward>();
    count += backward != nullptr && backward->y_TF.present();
  }
  return count;
}

int Count(const std::vector<std::string>& lines, const std::string& line) {
  return static_cast<int>(std::count(lines.begin(), lines.end(), line));
}

constexpr int64_t kRecomputedLayers = 3;

StepOptions With(CheckpointingPreset preset) { return {.activations = {.preset = preset}}; }

TEST(Recompute, AnActivationComesFromItsBackwardWhereThatMayGoFirst) {
  for (const CheckpointingPreset preset : {CheckpointingPreset::kCheap, CheckpointingPreset::kBlock}) {
    const StepProgram swiglu = PlanDecoder(With(preset), kRecomputedLayers).program;
    EXPECT_EQ(WithValue<SwiGluBackward>(swiglu), kRecomputedLayers) << ToString(preset);
    const std::vector<std::string> lines = BackwardOf(swiglu, "blocks.1");
    EXPECT_EQ(Count(lines, "recompute SwiGluForward"), 0) << ToString(preset);
    EXPECT_EQ(Count(lines, "backward SwiGluBackward"), 1) << ToString(preset);

    const StepProgram gelu =
        PlanDecoder(With(preset), kRecomputedLayers, GraphMode::kTraining, Activation::kGeluTanh).program;
    EXPECT_EQ(WithValue<GeluBackward>(gelu), kRecomputedLayers) << ToString(preset);
    EXPECT_EQ(Count(BackwardOf(gelu, "blocks.1"), "recompute GeluForward"), 0) << ToString(preset);
  }
}

TEST(Recompute, TheWeightGradientThatReadsItComesAfterIt) {
  const std::vector<std::string> lines =
      BackwardOf(PlanDecoder(With(CheckpointingPreset::kCheap), kRecomputedLayers).program, "blocks.1");
  // First the gaps of the unit's gradient are zeroed. The two matmuls are the gradients of the down projection's input
  // and weight, in this order.
  const std::vector<std::string> begin(lines.begin(), lines.begin() + 4);
  EXPECT_EQ(begin, (std::vector<std::string>{"backward ZeroRanges", "backward MatMul", "backward SwiGluBackward",
                                             "backward MatMul"}));
}

TEST(Recompute, WhatWasKeptIsNotComputedAgain) {
  const StepProgram program = PlanDecoder(With(CheckpointingPreset::kNone), kRecomputedLayers).program;
  EXPECT_EQ(WithValue<SwiGluBackward>(program), 0);
  for (const std::string& line : BackwardOf(program, "blocks.1")) {
    EXPECT_EQ(line.rfind("recompute", 0), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace shale::testing
