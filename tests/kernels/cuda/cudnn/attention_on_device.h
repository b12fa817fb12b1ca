// Attention by cuDNN, or by what stands in for it, in device memory and on streams: of whatever machines a program
// instantiates this with.
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
  CudaTestBackendOptions backend;  // Without attention.
  // For the runtime's first GPU. An error fails the test.
  std::function<absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>>()> load;
};

inline std::string MachineName(const ::testing::TestParamInfo<AttentionMachine>& info) {
  return info.param.backend.name;
}

class AttentionOnDeviceTest : public ::testing::TestWithParam<AttentionMachine> {};

}  // namespace shale::testing
