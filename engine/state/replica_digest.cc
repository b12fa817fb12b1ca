#include "engine/state/replica_digest.h"

#include <algorithm>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/io/crc32c.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;

class Digester {
 public:
  Digester(const MemoryPlan& plan, RankRuntime& rank) : plan_(plan), rank_(rank), chunk_(kChunkBytes) {}

  absl::Status Add(const Tensor& tensor, uint32_t& crc) {
    if (!tensor.present()) return absl::OkStatus();
    const std::byte* const from = rank_.Address(plan_, tensor.where);
    for (int64_t at = 0; at < tensor.extent_bytes(); at += kChunkBytes) {
      const int64_t bytes = std::min(kChunkBytes, tensor.extent_bytes() - at);
      SHALE_RETURN_IF_ERROR(rank_.Read(from + at, chunk_.data(), bytes));
      crc = Crc32c(absl::string_view(chunk_.data(), bytes), crc);
    }
    return absl::OkStatus();
  }

 private:
  const MemoryPlan& plan_;
  RankRuntime& rank_;
  std::vector<char> chunk_;
};

}  // namespace

absl::StatusOr<ReplicaDigest> DigestOfReplicas(const JobState& state, const MemoryPlan& plan, RankRuntime& rank) {
  ReplicaDigest digest;
  Digester digester(plan, rank);
  for (const GroupState& group : state.groups) {
    const Placement& placement = group.placement.placement();
    const auto add = [&](Part part, const Tensor& tensor) -> absl::Status {
      if (part == Part::kFull) return digester.Add(tensor, digest.everywhere);
      return placement.mesh.replicate > 1 ? digester.Add(tensor, digest.column) : absl::OkStatus();
    };
    SHALE_RETURN_IF_ERROR(add(placement.weights, group.weights()));
    SHALE_RETURN_IF_ERROR(add(placement.state, group.master));
    SHALE_RETURN_IF_ERROR(add(placement.state, group.low));
    for (const Tensor& tensor : group.states) SHALE_RETURN_IF_ERROR(add(placement.state, tensor));
  }
  return digest;
}

}  // namespace shale
