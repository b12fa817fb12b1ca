// Scratch is large enough for every iteration, whether the op writes or adds in it.
#include <cstdint>
#include <variant>

#include "engine/compile/model/model.h"
#include "engine/compile/step/compile.h"
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

INSTANTIATE_TEST_SUITE_P(Accumulations, ScratchTest,
                         ::testing::Values(Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered),
                         [](const auto& info) { return std::string(ToString(info.param)); });

}  // namespace
}  // namespace shale
