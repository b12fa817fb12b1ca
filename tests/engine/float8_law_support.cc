#include "tests/engine/float8_law_support.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "kernels/ops/float8.h"
#include "tests/engine/law_support.h"

namespace shale::testing {

int64_t TimesQuantized(const StepProgram& program) {
  int64_t times = 0;
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      const Op* op = std::get_if<Op>(&program.instructions[id].action);
      const QuantizeFloat8* quantize = op == nullptr ? nullptr : op->As<QuantizeFloat8>();
      if (quantize == nullptr) continue;
      const Tensor& codes = quantize->out_RC.present() ? quantize->out_RC : quantize->transposed_CR;
      if (absl::StrContains(program.buffers[codes.where.symbol].name, ".weight.")) times += loop.repeat;
    }
  }
  return times;
}

void ExpectQuantizingOnceAgrees(RunOptions options, const Tokens& tokens, int64_t blocks) {
  struct Case {
    Mesh mesh;
    Strategy strategy = Strategy::kFullShard;
    Accumulation accumulation = Accumulation::kSharded;
    int64_t times = 0;  // That weights are quantized.
  };
  options.steps = 2;
  for (const Case& c : {Case{.times = 4 * blocks},  // In both forms at once.
                        {.accumulation = Accumulation::kLayered, .times = 8 * blocks},
                        {{.shard = 3}, Strategy::kZero1, Accumulation::kNoSync, 4 * blocks},
                        {{.shard = 3}, Strategy::kZero1, Accumulation::kLayered, 8 * blocks}}) {
    options.step.mesh = c.mesh;
    options.step.strategy = c.strategy;
    options.step.accumulation = c.accumulation;
    options.step.prepares_weights_once = true;
    const RunResult once = MustRun(options, tokens);
    options.step.prepares_weights_once = false;
    const RunResult each = MustRun(options, tokens);
    EXPECT_EQ(once.losses, each.losses);
    EXPECT_TRUE(once.gradients == each.gradients);
    EXPECT_TRUE(once.weights == each.weights);
    EXPECT_EQ(once.measured_peak_bytes, once.plan.peak_bytes);
    EXPECT_EQ(TimesQuantized(each.step.program), 8 * blocks * each.step.program.micro_batches);
    EXPECT_EQ(TimesQuantized(once.step.program), c.times);
  }
}

}  // namespace shale::testing
