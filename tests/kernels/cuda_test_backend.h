// The CUDA backend of ops for the conformance suite, over a GPU or what stands in for one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/cuda/backends.h"
#include "kernels/device/cuda/runtime.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {

enum class Placement { kTogether, kApart };  // Of an op's operands: see TestBackend::allocate.

struct CudaTestBackendOptions {
  std::string name;
  Placement placement = Placement::kApart;
  // Outlives the program's tests; asked for when the first of them runs.
  std::function<CudaRuntime&()> runtime;
  std::function<std::unique_ptr<cuda::ProductBackend>()> create_products;
  // Empty: our kernels.
  std::function<std::unique_ptr<cuda::AttentionBackend>()> create_attention = {};
  bool keeps_nans = true;
};

// On the first GPU. The kernels are those that the program links.
TestBackend CudaTestBackend(CudaTestBackendOptions options);

}  // namespace shale::testing
