// NcclSetup: on what the cases of nccl_processes_cases.cc run. Each program that links them defines CreateNcclSetup, on
// GPUs or on stand-ins.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/cuda/runtime.h"
#include "sharding/comm/nccl/nccl_api.h"

namespace shale::testing {

struct NcclSetup {
  std::shared_ptr<CudaRuntime> runtime;
  std::shared_ptr<NcclApi> nccl;
};

// Called once, before there are threads. Returns NotFound if there is no NCCL.
absl::StatusOr<NcclSetup> CreateNcclSetup();

}  // namespace shale::testing
