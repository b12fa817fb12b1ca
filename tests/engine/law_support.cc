#include "tests/engine/law_support.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {

RunResult MustRun(const RunOptions& options, const std::vector<Tokens>& batches) {
  absl::StatusOr<RunResult> result = RunJob(options, batches);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : RunResult();
}

RunResult MustRun(const RunOptions& options, const Tokens& tokens) {
  return MustRun(options, std::vector<Tokens>{tokens});
}

void ExpectSchedulesAgree(
    RunOptions options, const Tokens& tokens, int64_t most_blocks,
    const std::function<void(RunOptions&, const std::function<void(const std::string&)>&)>& more) {
  options.step.accumulation = Accumulation::kNoSync;
  const RunResult no_sync = MustRun(options, tokens);
  const auto expect_same = [&](const std::string& what) {
    const RunResult result = MustRun(options, tokens);
    EXPECT_EQ(result.losses, no_sync.losses) << what;
    EXPECT_TRUE(result.gradients == no_sync.gradients) << what;
    EXPECT_TRUE(result.weights == no_sync.weights) << what;
    EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes) << what;
  };
  options.step.accumulation = Accumulation::kLayered;
  expect_same("LAYERED");
  for (const int preset : {1, 2, 3, 4, 5}) {
    for (int64_t segment = 1; segment <= most_blocks; ++segment) {
      if (!TestsEveryCombination() && preset != 2 + segment) continue;
      options.step.activations = {.preset = static_cast<CheckpointingPreset>(preset), .segment_blocks = segment};
      expect_same(absl::StrCat(ToString(options.step.activations.preset), " in segments of ", segment));
    }
  }
  options.step.activations = {.offload = {"*"}};
  expect_same("offload");
  if (more != nullptr) more(options, expect_same);
}

}  // namespace shale::testing
