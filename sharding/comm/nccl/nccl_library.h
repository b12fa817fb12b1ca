// NCCL itself, loaded at run time.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/cuda/shared_library.h"
#include "sharding/comm/nccl/nccl_api.h"

namespace shale {

// NotFound where there is no NCCL, FailedPrecondition where it is too old or of another major version, with what to
// install. Sets NCCL_LAUNCH_ORDER_IMPLICIT=1 unless the environment has its own: two communicators of a rank, fed by
// one thread, are then launched in that thread's order on every rank, and cannot wait for each other. Because of the
// environment: call it before there are threads, and before anything else uses NCCL.
absl::StatusOr<std::unique_ptr<NcclApi>> LoadNccl(const LibrarySearch& search = LibrarySearch::FromEnvironment());

}  // namespace shale
