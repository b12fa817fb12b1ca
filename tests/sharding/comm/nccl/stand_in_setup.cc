// Lets nccl_processes_cases run without a GPU. SHALE_TEST_NCCL (default 22809) says which version of NCCL to stand in
// for.
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "absl/strings/numbers.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tests/sharding/comm/nccl/nccl_setup.h"
#include "tests/sharding/comm/nccl/process_nccl.h"

namespace shale::testing {

absl::StatusOr<NcclSetup> CreateNcclSetup() {
  int version = 22809;
  if (const char* text = std::getenv("SHALE_TEST_NCCL"); text != nullptr && !absl::SimpleAtoi(text, &version)) {
    return absl::InvalidArgumentError("SHALE_TEST_NCCL is no number");
  }
  return NcclSetup{
      .runtime = std::make_shared<cuda_on_host::StandInRuntime>(cuda_on_host::StandInOptions{.allow_pageable = true}),
      .nccl = std::make_shared<ProcessNccl>(version, std::filesystem::temp_directory_path().string())};
}

}  // namespace shale::testing
