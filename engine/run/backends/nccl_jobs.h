// What a job on GPUs has of NCCL: its environment variables, and the groups of its ranks.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/backend.h"
#include "engine/plan/config/job.h"
#include "engine/run/backends/cuda_backend.h"
#include "kernels/device/cuda/runtime.h"
#include "sharding/comm/nccl/nccl.h"
#include "sharding/comm/nccl/nccl_api.h"
#include "sharding/comm/store.h"

namespace shale {

// Loads NCCL (sharding/comm/nccl/nccl_library.h), or a stand-in.
using NcclLoader = std::function<absl::StatusOr<std::shared_ptr<NcclApi>>()>;

// Sets the environment variables that NCCL reads for this job, if it uses NCCL (sharding/comm/nccl/nccl_environment.h).
// Call it before there are threads. For runtime.nccl_shares_gpus it calls `load`, because the variables depend on
// NCCL's version, and ignores an error: JoinByNccl has it again.
void PrepareNcclEnvironment(const Job& job, const NcclLoader& load);

// Checks that NCCL can join the ranks of the job if this process, at `place`, is one of several. Returns
// InvalidArgument if the job excludes NCCL, or if ranks that share a GPU are in one process.
absl::Status CheckProcesses(const Job& job, const BackendPlace& place);

// Returns a factory of groups over NCCL (sharding/comm/nccl/nccl.h). Those with ranks of other processes find each
// other through `store`, which it borrows; if it is null, such groups are refused. So are groups of which this process
// holds two ranks on one GPU. Shares ownership of the others.
CudaGroupFactory NcclGroups(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaRuntime> runtime, Store* store,
                            const NcclOptions& options);

// Lets NCCL join the ranks of the job, if it uses NCCL and has several ranks: sets in `options` what creates groups and
// memory, whether processes share GPUs, and a line about them. Calls `load`, and PrepareNcclEnvironment. Only
// creating a group fails if there is no NCCL. `place.store` must outlive the groups.
void JoinByNccl(const Job& job, const NcclLoader& load, std::shared_ptr<CudaRuntime> runtime, const BackendPlace& place,
                CudaBackendOptions& options);

}  // namespace shale
