// Attention in device memory and on streams, on whatever a program instantiates this with.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/cuda/backends.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/runtime.h"

namespace shale::testing {

struct AttentionMachine {
  std::string name;
  std::function<std::unique_ptr<CudaRuntime>()> create_runtime;
  // For the runtime's first GPU. NotFound, and a runtime without a GPU, skip the test.
  std::function<absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>>(const CudaDeviceProperties& gpu)> load;
};

inline std::string MachineName(const ::testing::TestParamInfo<AttentionMachine>& info) { return info.param.name; }

class AttentionOnDeviceTest : public ::testing::TestWithParam<AttentionMachine> {
 protected:
  void SetUp() override;

  // A new one, in pieces of so much workspace.
  cuda::AttentionBackend& Backend(int64_t workspace_bytes = 0);

  std::unique_ptr<CudaRuntime> runtime_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<cuda::AttentionBackend> backend_;
};

}  // namespace shale::testing
