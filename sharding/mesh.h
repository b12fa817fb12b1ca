// Mesh: arranges the ranks of a job in a grid, and defines the groups of ranks in which collectives run.
//
//   The mesh {replicate = 2, shard = 3}:
//
//                    shard 0  1  2
//     replicate 0         0   1  2      The ranks of a row own one copy of the model's state together, a shard each.
//     replicate 1         3   4  5      The ranks of a column own copies of the same shard.
//
// A collective names an axis, never a list of ranks. Each rank takes part in one group along each axis: its row, its
// column, or all ranks. {1, W} shards over all W ranks (FSDP, ZeRO); {R, S} is hybrid sharding (HSDP).
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

// The grid, as a plain value. All functions REQUIRE that both sizes are at least 1 and that `rank` is in [0, ranks()).
struct Mesh {
  int64_t replicate = 1;
  int64_t shard = 1;

  int64_t ranks() const { return replicate * shard; }
  // Returns how many ranks a group along `axis` has.
  int64_t size(MeshAxis axis) const {
    if (axis == MeshAxis::kAll) return ranks();
    return axis == MeshAxis::kShard ? shard : replicate;
  }
  // Returns the place of `rank` in its group along `axis`, from 0.
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
  // Returns the axis whose communicators serve `axis`. If there is only one row or only one column, kAll has the same
  // groups as another axis, and that axis serves it.
  MeshAxis Serving(MeshAxis axis) const {
    if (axis != MeshAxis::kAll) return axis;
    if (replicate == 1) return MeshAxis::kShard;
    return shard == 1 ? MeshAxis::kReplicate : MeshAxis::kAll;
  }

  bool operator==(const Mesh&) const = default;

 private:
  // Returns the difference between the ranks of two neighbors in a group along `axis`.
  int stride(MeshAxis axis) const { return axis == MeshAxis::kReplicate ? static_cast<int>(shard) : 1; }
};

}  // namespace shale
