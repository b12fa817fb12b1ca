// Loads NCCL at run time.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/cuda/shared_library.h"
#include "sharding/comm/nccl/nccl_api.h"

namespace shale {

// Loads NCCL. Returns NotFound if there is none, and FailedPrecondition if it is too old or of another major version;
// the error says what to install. Sets NCCL_LAUNCH_ORDER_IMPLICIT=1 unless the environment sets it: NCCL then launches
// the collectives of two communicators of a rank in the order in which its thread enqueues them, so that they cannot
// wait for each other. Sets NCCL_RUNTIME_CONNECT=0 in the same way: NCCL then connects and takes its memory when a
// communicator is made, and not when some algorithm is first used. Because it changes the environment, call it before
// there are threads and before anything else uses NCCL.
absl::StatusOr<std::unique_ptr<NcclApi>> LoadNccl(const LibrarySearch& search = LibrarySearch::FromEnvironment());

}  // namespace shale
