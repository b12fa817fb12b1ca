// Loads NCCL at run time.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/cuda/shared_library.h"
#include "sharding/comm/nccl/nccl_api.h"

namespace shale {

// Loads NCCL. Returns NotFound if there is none, and FailedPrecondition if it is too old or of another major version;
// the error says what to install. Calls SetNcclEnvironment.
absl::StatusOr<std::unique_ptr<NcclApi>> LoadNccl(const LibrarySearch& search = LibrarySearch::FromEnvironment());

// Sets two environment variables that NCCL reads, unless they are set already. Call it before there are threads and
// before anything else uses NCCL; a later call changes nothing.
// - NCCL_LAUNCH_ORDER_IMPLICIT=1: NCCL launches the collectives of two communicators of a rank in the order in which
//   its thread enqueues them, so that they cannot wait for each other.
// - NCCL_RUNTIME_CONNECT=0: NCCL connects and takes its memory when a communicator is made, and not when some algorithm
//   is first used.
void SetNcclEnvironment();

}  // namespace shale
