// The CUDA backend of ops for the conformance suite, on a GPU or on a stand-in for one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/cuda/backends.h"
#include "kernels/device/cuda/runtime.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {

enum class Placement { kTogether, kApart };  // How an op's operands lie: see TestBackend::allocate.

struct CudaTestBackendOptions {
  std::string name;
  Placement placement = Placement::kApart;
  // Returns the runtime, which must outlive the program's tests. Called when the first of them runs.
  std::function<CudaRuntime&()> runtime;
  std::function<std::unique_ptr<cuda::MatMulBackend>()> create_matmuls;
  // If empty, our kernels compute attention.
  std::function<std::unique_ptr<cuda::AttentionBackend>()> create_attention = {};
  bool keeps_nans = true;
};

// Returns a backend on the first GPU. Its kernels are those that the program links.
TestBackend CudaTestBackend(CudaTestBackendOptions options);

}  // namespace shale::testing
