#include "engine/run/backends/nccl_jobs.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/run/backends/cuda_planning.h"
#include "kernels/check.h"
#include "sharding/comm/nccl/nccl_environment.h"

namespace shale {
namespace {

absl::Status CheckGpus(const GroupMembers& group, absl::Span<const int> ordinals) {
  for (size_t i = 0; i < ordinals.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (ordinals[i] != ordinals[j]) continue;
      return absl::InvalidArgumentError(absl::StrCat("group ", group.name, ": ranks ", group.places[j], " and ",
                                                     group.places[i], " of one process share GPU ", ordinals[i],
                                                     ", which NCCL does not take; start a process for "
                                                     "each rank (tools/launch --processes=N)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

CudaGroupFactory NcclGroups(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaRuntime> runtime, Store* store,
                            const NcclOptions& options) {
  return [nccl = std::move(nccl), runtime = std::move(runtime), store, options](
             const GroupMembers& group,
             absl::Span<const int> ordinals) -> absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> {
    SHALE_RETURN_IF_ERROR(CheckGpus(group, ordinals));
    if (!group.spans_processes()) return CreateNcclGroup(nccl, runtime, ordinals, options);
    if (store == nullptr) return group.CheckOneProcess();
    const NcclMembers members = {
        .name = group.name, .size = group.size, .ranks = group.places, .ordinals = {ordinals.begin(), ordinals.end()}};
    return CreateNcclGroup(nccl, runtime, *store, members, options);
  };
}

void PrepareNcclEnvironment(const Job& job, const NcclLoader& load) {
  if (!UsesNccl(job)) return;
  SetNcclEnvironment();
  if (!job.runtime.nccl_shares_gpus) return;
  if (const absl::StatusOr<std::shared_ptr<NcclApi>> nccl = load(); nccl.ok()) {
    SetNcclSharingEnvironment((*nccl)->Version());
  }
}

absl::Status CheckProcesses(const Job& job, const BackendPlace& place) {
  if (place.store == nullptr) return absl::OkStatus();
  const RuntimeConfig& runtime = job.runtime;
  if (!UsesNccl(job)) {
    return absl::InvalidArgumentError(
        runtime.ranks_per_device > 1
            ? absl::StrCat("runtime.ranks_per_device: the job runs in several processes, which NCCL joins, with one "
                           "rank on a GPU, and the job has ",
                           runtime.ranks_per_device,
                           "; set 1, or start one process (tests on too few GPUs: runtime.nccl_shares_gpus)")
            : std::string("runtime.collectives: the job runs in several processes, which NCCL joins, and the job says "
                          "IN_PROCESS; set NCCL, or start one process"));
  }
  if (runtime.nccl_shares_gpus && place.share.ranks > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("runtime.nccl_shares_gpus: each rank must be a process of its own, and this process holds ",
                     place.share.ranks, " of ", job.sharding.ranks,
                     "; start as many processes as ranks (tools/launch --processes=", job.sharding.ranks, ")"));
  }
  return absl::OkStatus();
}

void JoinByNccl(const Job& job, const NcclLoader& load, std::shared_ptr<CudaRuntime> runtime, const BackendPlace& place,
                CudaBackendOptions& options) {
  if (!UsesNccl(job) || job.sharding.ranks == 1) return;
  PrepareNcclEnvironment(job, load);
  options.processes_share = job.runtime.nccl_shares_gpus;
  absl::StatusOr<std::shared_ptr<NcclApi>> nccl = load();
  if (!nccl.ok()) {
    options.create_group = [why = nccl.status()](auto&&...) { return why; };
    return;
  }
  if (job.runtime.nccl_windows) options.memory = CreateNcclMemory(*nccl);
  if (job.runtime.nccl_shares_gpus) {
    const int version = (*nccl)->Version();
    const std::string line =
        absl::StrCat("NCCL ", NcclVersionText(version), " between processes that share a GPU, with ",
                     SetNcclSharingEnvironment(version));
    options.describe_libraries = [others = std::move(options.describe_libraries), line] {
      return absl::StrCat(others ? others() : "", others ? "; " : "", line);
    };
  }
  options.create_group = NcclGroups(*nccl, std::move(runtime), place.store, {.windows = job.runtime.nccl_windows});
}

}  // namespace shale
