// Loads NCCL at run time.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/cuda/shared_library.h"
#include "sharding/comm/nccl/nccl_api.h"

namespace shale {

// Loads NCCL. Returns NotFound if there is none, and FailedPrecondition if it is too old or of another major version;
// the error says what to install. Calls SetNcclEnvironment (nccl_environment.h). NCCL reads no variable yet.
absl::StatusOr<std::unique_ptr<NcclApi>> LoadNccl(const LibrarySearch& search = LibrarySearch::FromEnvironment());

}  // namespace shale
