// Expectations of a launch, for tests of the host runner.
#pragma once

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/portable.h"

namespace shale::cuda {

inline constexpr int kSeeds = 20;

// Calls check(stream) with streams that run launches in kSeeds variants of each order of blocks and threads.
template <class Check>
void InEachOrder(const Check& check) {
  for (const cuda_on_host::ThreadOrder order :
       {cuda_on_host::ThreadOrder::kTurns, cuda_on_host::ThreadOrder::kWarpsAhead}) {
    for (int seed = 0; seed < kSeeds; ++seed) {
      SCOPED_TRACE(::testing::Message() << "order " << static_cast<int>(order) << ", seed " << seed);
      cuda_on_host::Stream stream{.seed = static_cast<uint64_t>(seed), .order = order};
      check(&stream);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// Expects that run(stream) succeeds in each of these orders.
template <class Run>
void ExpectRight(const Run& run) {
  InEachOrder([&](cuda_on_host::Stream* stream) {
    const absl::Status status = run(stream);
    ASSERT_TRUE(status.ok()) << status;
  });
}

// Expects that run(stream) is reported as wrong in each of these orders, with a message that contains all `parts`.
template <class Run>
void ExpectWrong(const Run& run, const std::vector<std::string>& parts) {
  InEachOrder([&](cuda_on_host::Stream* stream) {
    const absl::Status status = run(stream);
    ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    const std::string message(status.message().data(), status.message().size());
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << "\n" << part;
  });
}

}  // namespace shale::cuda
