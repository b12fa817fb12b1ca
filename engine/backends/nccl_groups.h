// Groups of ranks on GPUs, in one process or in several, joined by NCCL.
#pragma once

#include <memory>

#include "engine/runtime/cuda_backend.h"
#include "kernels/device/cuda/runtime.h"
#include "sharding/comm/nccl/nccl.h"
#include "sharding/comm/nccl/nccl_api.h"
#include "sharding/comm/store.h"

namespace shale {

// Returns a factory of groups over NCCL (sharding/comm/nccl/nccl.h). Those with ranks of other processes find each
// other through `store`, which it borrows; if it is null, such groups are refused. So are groups of which this process
// holds two ranks on one GPU. Shares ownership of the others.
CudaGroupFactory NcclGroups(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaRuntime> runtime, Store* store,
                            const NcclOptions& options);

}  // namespace shale
