#include "tests/engine/float8_law_support.h"

#include <gtest/gtest.h>

#include <string>

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

namespace {

int64_t BytesKept(const StepProgram& program) {
  int64_t bytes = 0;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.category == BufferCategory::kActivations) bytes += buffer.slot_bytes * buffer.slots;
  }
  return bytes;
}

// Runs two steps with sources and without them.
void ExpectSame(RunOptions options, const Tokens& tokens, const std::string& what) {
  options.steps = 2;
  options.float8_sources = Float8Sources::kUsed;
  const RunResult with = MustRun(options, tokens);
  options.float8_sources = Float8Sources::kNotUsed;
  const RunResult without = MustRun(options, tokens);
  EXPECT_EQ(with.losses, without.losses) << what;
  EXPECT_TRUE(with.gradients == without.gradients) << what;
  EXPECT_TRUE(with.weights == without.weights) << what;
  EXPECT_EQ(with.measured_peak_bytes, with.plan.peak_bytes) << what;
  EXPECT_LE(BytesKept(with.step.program), BytesKept(without.step.program)) << what;
}

}  // namespace

void ExpectSourcesChangeNoBits(RunOptions options, const Tokens& tokens) {
  ExpectSame(options, tokens, "without activation checkpointing");
  options.step.activations = {.preset = CheckpointingPreset::kBlock, .segment_blocks = 2};
  options.step.accumulation = Accumulation::kLayered;
  options.step.mesh = {.shard = 2};
  ExpectSame(options, tokens, "segments in LAYERED with two ranks");
}

void ExpectSourcesChangeNoBitsWithCheckpointing(RunOptions options, const Tokens& tokens) {
  for (int preset = 0; preset <= static_cast<int>(CheckpointingPreset::kBlock); ++preset) {
    options.step.activations = {.preset = static_cast<CheckpointingPreset>(preset)};
    ExpectSame(options, tokens, std::string(ToString(options.step.activations.preset)));
  }
  options.step.accumulation = Accumulation::kLayered;
  options.step.mesh = {.shard = 2};
  for (const char* pattern : {"*.fp8.transposed", "*.rstd", "*"}) {
    options.step.activations = {.patterns = {pattern}};
    ExpectSame(options, tokens, pattern);
  }
}

int64_t BytesMoved(const StepProgram& program) {
  double bytes = 0;
  for (const Instruction& instruction : program.instructions) {
    const Op* op = std::get_if<Op>(&instruction.action);
    if (op == nullptr || FlopsOf(*op) > 0) continue;
    const OpTraffic traffic = TrafficOf(*op);
    bytes += traffic.bytes_read + traffic.bytes_written;
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace shale::testing
