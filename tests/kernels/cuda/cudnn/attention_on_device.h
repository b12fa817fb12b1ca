// Tests attention by cuDNN, or by a stand-in for it, in device memory and on streams. A program instantiates
// AttentionOnDeviceTest with its machines.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "tests/kernels/cuda_test_backend.h"

namespace shale::testing {

struct AttentionMachine {
  CudaTestBackendOptions backend;  // Without create_attention.
  // Loads cuDNN or its stand-in for the runtime's first GPU. An error fails the test.
  std::function<absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>>()> load;
};

inline std::string MachineName(const ::testing::TestParamInfo<AttentionMachine>& info) {
  return info.param.backend.name;
}

class AttentionOnDeviceTest : public ::testing::TestWithParam<AttentionMachine> {};

}  // namespace shale::testing
