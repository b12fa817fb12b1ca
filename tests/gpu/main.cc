// Every test that wants a GPU, in one program that needs nothing beside it but the driver and CUDA's libraries: op
// conformance, kernels, devices, communicators, the laws of training steps. Where there is no GPU it says so in one
// line, and fails: a run that tested nothing must not look like one that passed.
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "tests/gpu/gpu.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  // Those which end a GPU's context run in a process of their own, and a process that uses CUDA cannot be forked.
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
