// Expectations of a launch, for tests of the host runner.
#pragma once

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/portable.h"

namespace shale::cuda {

inline constexpr int kSeeds = 20;

// Expects that run(stream) succeeds in each of kSeeds orders of blocks and threads.
template <class Run>
void ExpectRight(const Run& run) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    cuda_on_host::Stream stream{.seed = static_cast<uint64_t>(seed)};
    const absl::Status status = run(&stream);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status;
  }
}

// Expects that run(stream) is reported as wrong in each of these orders, with a message that contains all `parts`.
template <class Run>
void ExpectWrong(const Run& run, const std::vector<std::string>& parts) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    cuda_on_host::Stream stream{.seed = static_cast<uint64_t>(seed)};
    const absl::Status status = run(&stream);
    ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << "seed " << seed << ": " << status;
    const std::string message(status.message().data(), status.message().size());
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << "\n" << part;
  }
}

}  // namespace shale::cuda
