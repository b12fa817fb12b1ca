// Runs all tests that need a GPU: op conformance, kernels, devices, communicators, and the laws of training steps. The
// program needs only the driver and CUDA's libraries besides itself. Without a GPU it prints one line and fails: a run
// that tested nothing must not look like one that passed.
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "tests/gpu/gpu.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  // Death tests destroy the GPU's context, so each runs in its own process. "threadsafe" starts that process anew: a
  // process that uses CUDA cannot be forked.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (!GTEST_FLAG_GET(list_tests)) {
    const absl::Status found = shale::testing::FindGpu();
    if (!found.ok()) {
      std::fprintf(stderr, "gpu_tests: %s\n", std::string(found.message()).c_str());
      return 1;
    }
  }
  return RUN_ALL_TESTS();
}
