#include "engine/backends/nccl_groups.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

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

}  // namespace shale
