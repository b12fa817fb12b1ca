#include "engine/backends/nccl_groups.h"

#include <utility>
#include <vector>

#include "kernels/check.h"

namespace shale {

CudaGroupFactory NcclGroups(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaRuntime> runtime, Store* store,
                            const NcclOptions& options) {
  return [nccl = std::move(nccl), runtime = std::move(runtime), store, options](
             const GroupMembers& group,
             absl::Span<const int> ordinals) -> absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> {
    if (!group.spans_processes()) return CreateNcclGroup(nccl, runtime, ordinals, options);
    if (store == nullptr) return group.CheckOneProcess();
    const NcclMembers members = {
        .name = group.name, .size = group.size, .ranks = group.places, .ordinals = {ordinals.begin(), ordinals.end()}};
    return CreateNcclGroup(nccl, runtime, *store, members, options);
  };
}

}  // namespace shale
