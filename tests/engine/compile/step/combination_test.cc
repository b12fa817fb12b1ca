// Tests that the step compiler refuses pairs of strategy and accumulation that do not exist.
#include <string>

#include "engine/compile/model/model.h"
#include "engine/compile/step/compile.h"
#include "engine/compile/step/options_enums.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference_ops.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

absl::Status CompileWith(const StepOptions& options) {
  const absl::StatusOr<ModelGraph> graph =
      BuildMlp({.vocabulary = 7, .embedding = 4, .hidden = 8, .layers = 1}, {.micro_batch = 1, .sequence_length = 3});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return CompileStep(*graph, options, *CreateReferenceOps()).status();
}

TEST(Combinations, APairThatIsAnotherOneIsRefusedWithItsName) {
  const absl::Status status = CompileWith({.strategy = Strategy::kZero1, .mesh = {.shard = 2}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ZERO2"));
  EXPECT_TRUE(CompileWith({.strategy = Strategy::kZero2, .mesh = {.shard = 2}}).ok());
}

TEST(Combinations, EveryStrategyIsCompiledForAMesh) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
    const absl::Status status = CompileWith(
        {.strategy = strategy, .accumulation = Accumulation::kLayered, .mesh = {.replicate = 2, .shard = 3}});
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace shale
