// Scratch is large enough for every iteration, whether the op writes or adds in it.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <variant>

#include "engine/compile/model/model.h"
#include "engine/compile/step/compile.h"
#include "engine/compile/step/passes.h"
#include "gtest/gtest.h"
#include "kernels/op_backend.h"
#include "kernels/ops.h"

namespace shale {
namespace {

// Needs `writes` bytes of scratch for an op that writes, and `adds` bytes for one that adds.
class PickyOps : public Ops {
 public:
  PickyOps(int64_t writes, int64_t adds) : writes_(writes), adds_(adds) {}
  int64_t ScratchBytes(const Op& op) const override {
    const bool adds = std::visit(
        [](const auto& o) {
          if constexpr (requires { o.accumulate; }) return o.accumulate;
          return false;
        },
        op.kinds());
    return adds ? adds_ : writes_;
  }

 protected:
  absl::Status Enqueue(const Op&, Scratch, Stream&) override { return absl::UnimplementedError("not to be run"); }

 private:
  const int64_t writes_, adds_;
};

class ScratchTest : public ::testing::TestWithParam<Accumulation> {};

TEST_P(ScratchTest, IsTheMostOfAllIterations) {
  DecoderConfig c;
  c.vocabulary = 11;
  c.width = 8;
  c.layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_width = 4;
  c.hidden = 12;
  c.tied_head = true;
  const absl::StatusOr<ModelGraph> graph =
      BuildDecoder(c, {.mode = GraphMode::kTraining, .micro_batch = 2, .sequence_length = 64, .loss_chunk_tokens = 16});
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const int ranks : {1, 2}) {
    for (const auto& [writes, adds] : {std::pair<int64_t, int64_t>{100, 300}, {300, 100}}) {
      const PickyOps ops(writes, adds);
      StepOptions options;
      options.accumulation = GetParam();
      options.mesh = {.shard = ranks};
      options.micro_batches = 3;
      if (options.accumulation == Accumulation::kNoSync) options.strategy = Strategy::kZero1;
      const absl::StatusOr<CompiledStep> step = CompileStep(*graph, options, ops);
      ASSERT_TRUE(step.ok()) << step.status();
      int both = 0;
      for (const Instruction& instruction : step->program.instructions) {
        const Op* op = std::get_if<Op>(&instruction.action);
        if (op == nullptr) continue;
        both += instruction.first_iteration_differs;
        EXPECT_EQ(instruction.scratch.extent_bytes(), instruction.first_iteration_differs ? 300 : ops.ScratchBytes(*op))
            << NameOf(instruction);
      }
      EXPECT_GT(both, 1);
    }
  }
}

// Is faster with up to 1,000 bytes more for what needs 300.
class GrowingOps : public PickyOps {
 public:
  using PickyOps::PickyOps;
  int64_t AmpleScratchBytes(const Op& op, int64_t most_bytes) const override {
    const int64_t needed = ScratchBytes(op);
    return needed < 300 ? needed : std::max(needed, std::min<int64_t>(1000, most_bytes));
  }
};

TEST(AmpleScratch, GivesOpsWhatMakesThemFastest) {
  StepProgram program;
  const auto add = [&](StreamId stream, bool accumulate) {
    Instruction instruction{.stream = stream};
    instruction.action = MatMul{.accumulate = accumulate};
    program.instructions.push_back(instruction);
  };
  add(StreamId::kCompute, true);
  add(StreamId::kCompute, false);
  program.loops = {{0, 2, 1}};
  const GrowingOps ops(100, 300);
  ASSERT_TRUE(AddScratch(program, ops).ok());
  EXPECT_FALSE(WithAmpleScratch(program, ops, 300).has_value());
  const std::optional<StepProgram> ample = WithAmpleScratch(program, ops, 500);
  ASSERT_TRUE(ample.has_value());
  const Tensor &large = ample->instructions[0].scratch, &small = ample->instructions[1].scratch;
  EXPECT_EQ(large.extent_bytes(), 500);
  EXPECT_EQ(ample->buffers[large.where.symbol].size_bytes(), 500);
  EXPECT_EQ(small.extent_bytes(), 100);
  EXPECT_EQ(ample->buffers[small.where.symbol].size_bytes(), 100);
}

INSTANTIATE_TEST_SUITE_P(Accumulations, ScratchTest,
                         ::testing::Values(Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered),
                         [](const auto& info) { return std::string(ToString(info.param)); });

}  // namespace
}  // namespace shale
