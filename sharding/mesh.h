// Mesh: the ranks of a job as a grid, and the groups of ranks in which collectives run.
//
//   The mesh {replicate = 2, shard = 3}:
//
//                    shard 0  1  2
//     replicate 0         0   1  2      The ranks of a row own one copy of the model's state together, a shard each.
//     replicate 1         3   4  5      The ranks of a column own copies of the same shard.
//
// A collective names an axis, never a list of ranks. Each rank takes part in one group along each axis: its row, its
// column, or all ranks. {1, W} shards over all ranks (FSDP, ZeRO); {R, S} is hybrid sharding (HSDP).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/check.h"

namespace shale {

enum class MeshAxis : uint8_t {
  kShard,      // The row of a rank.
  kReplicate,  // The column of a rank.
  kAll,        // All ranks.
};
inline constexpr int kMeshAxes = 3;

inline absl::string_view ToString(MeshAxis axis) {
  switch (axis) {
    case MeshAxis::kShard: return "shard";
    case MeshAxis::kReplicate: return "replicate";
    case MeshAxis::kAll: return "all";
  }
  return "?";
}

// A plain value. REQUIRES of all functions: both sizes are at least 1, and `rank` is in [0, ranks()).
struct Mesh {
  int64_t replicate = 1;
  int64_t shard = 1;

  int64_t ranks() const { return replicate * shard; }
  // Returns how many ranks a group along `axis` has.
  int64_t size(MeshAxis axis) const {
    if (axis == MeshAxis::kAll) return ranks();
    return axis == MeshAxis::kShard ? shard : replicate;
  }
  // Returns the place of a rank in its group along `axis`.
  int index(int rank, MeshAxis axis) const {
    SHALE_CHECK(rank >= 0 && rank < ranks()) << "rank " << rank << " of " << ranks();
    if (axis == MeshAxis::kAll) return rank;
    return static_cast<int>(axis == MeshAxis::kShard ? rank % shard : rank / shard);
  }
  // Returns the ranks of the group of `rank` along `axis`, in the order of their places.
  std::vector<int> Group(int rank, MeshAxis axis) const {
    const int first = rank - index(rank, axis) * stride(axis);
    std::vector<int> group;
    for (int i = 0; i < size(axis); ++i) group.push_back(first + i * stride(axis));
    return group;
  }
  // Returns the axis whose communicators serve `axis`: kAll has the groups of another axis if there is only one row or
  // only one column.
  MeshAxis Serving(MeshAxis axis) const {
    if (axis != MeshAxis::kAll) return axis;
    if (replicate == 1) return MeshAxis::kShard;
    return shard == 1 ? MeshAxis::kReplicate : MeshAxis::kAll;
  }

  bool operator==(const Mesh&) const = default;

 private:
  // The distance between two neighbours of a group.
  int stride(MeshAxis axis) const { return axis == MeshAxis::kReplicate ? static_cast<int>(shard) : 1; }
};

}  // namespace shale
