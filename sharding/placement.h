// Placement: says which part of the model's state each rank holds between steps, and what a step has to communicate for
// that.
//
// ShardLayout says where parameters lie in a flat group. GroupPlacement adds which elements of the group a rank holds.
// The step compiler, checkpoints and access by parameter all ask it, because no other code knows this.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/strings/string_view.h"
#include "kernels/element_range.h"
#include "kernels/tensor.h"
#include "sharding/comm/collective_kind.h"
#include "sharding/mesh.h"
#include "sharding/shard_layout.h"

namespace shale {

// What is sharded over the ranks. Each strategy also shards what the ones before it shard.
enum class Strategy {
  kDdp,        // Nothing (distributed data parallel).
  kZero1,      // Master weights and optimizer state (ZeRO-1).
  kZero2,      // Gradients (ZeRO-2).
  kFullShard,  // Parameters (FSDP, ZeRO-3).
};
absl::string_view ToString(Strategy strategy);

// The part of a flat group's vector that a rank holds.
enum class Part : uint8_t { kFull, kShard };

// How a strategy places the state of a model. On a mesh with one shard, every part is full. On a mesh with replicas,
// each row of ranks holds a copy of the state, sharded over the row (hybrid sharding).
struct Placement {
  Part weights = Part::kFull;    // Weights in the compute dtype, between steps.
  Part state = Part::kFull;      // Masters and optimizer states. The rank updates the elements of this part.
  Part gradients = Part::kFull;  // The fp32 vector in which gradients accumulate over micro-batches.
  Mesh mesh;

  // Returns the placement of `strategy` on `mesh`. If `once_a_step` is true, gradients accumulate without communication
  // and are reduced once a step (NO_SYNC).
  static Placement Of(Strategy strategy, bool once_a_step, const Mesh& mesh);

  // Returns whether weights are gathered for each use.
  bool gathers_for_use() const { return weights == Part::kShard; }
  // Returns whether weights are gathered once a step, after each rank has updated its shard of them.
  bool gathers_after_update() const { return weights == Part::kFull && state == Part::kShard; }
  // Returns whether gradients are summed over ranks at all.
  bool reduces() const { return mesh.ranks() > 1; }
  // Returns whether gradients accumulate over the step in a full vector, which is reduced once.
  bool reduces_full_gradients() const { return reduces() && gradients == Part::kFull; }
  // Returns the collective that sums gradients: over all ranks, or over a row of the mesh if sums_over_replicas().
  CollectiveKind reduction() const {
    return state == Part::kShard ? CollectiveKind::kReduceScatterSum : CollectiveKind::kAllReduceSum;
  }

  // Returns whether gradient shards, which are sums over a row of the mesh, are also summed over the rows, once a step.
  bool sums_over_replicas() const { return state == Part::kShard && mesh.replicate > 1; }

  bool operator==(const Placement&) const = default;
};

// The layout and the placement of one flat group. Immutable and copyable. Any thread may read it.
class GroupPlacement {
 public:
  GroupPlacement(ShardLayout layout, const Placement& placement) : layout_(std::move(layout)), placement_(placement) {}

  const ShardLayout& layout() const { return layout_; }
  const Placement& placement() const { return placement_; }

  // Returns how many elements `part` has, which is the same on every rank.
  int64_t elements(Part part) const {
    return part == Part::kFull ? layout_.padded_elements() : layout_.shard_elements();
  }
  // Returns the elements of the group that lie in `part` of `rank`.
  ElementRange Range(Part part, int rank) const;
  // Returns the elements whose weights `rank` holds between steps.
  ElementRange Weights(int rank) const { return Range(placement_.weights, rank); }
  // Returns the elements that `rank` updates, whose masters and optimizer states it holds.
  ElementRange Owned(int rank) const { return Range(placement_.state, rank); }
  // Return the elements that `rank` saves in a checkpoint, and the parts of parameters among them. Under every strategy
  // these lie in its shard. The replicas of a shard divide it among them, so that the ranks together save every element
  // once.
  ElementRange SavedRange(int rank) const {
    return layout_.ShardRange(Shard(rank), Replica(rank), static_cast<int>(placement_.mesh.replicate));
  }
  std::vector<ShardLayout::Piece> Saved(int rank) const {
    return layout_.ParameterPieces(Shard(rank), Replica(rank), static_cast<int>(placement_.mesh.replicate));
  }

  // Returns a tensor that stands for a shard of `full`: each rank that binds it gets its own shard (Location in
  // kernels/tensor.h). `full` is a vector with one element for every `block` elements of the group.
  Tensor ShardOf(const Tensor& full, int64_t block = 1) const;
  // Does the same for a vector that the shards divide equally, whatever its elements stand for.
  Tensor EqualShardOf(const Tensor& full) const;
  // Returns a tensor that stands for the part of `full` that the rank which binds it updates.
  Tensor OwnedOf(const Tensor& full, int64_t block = 1) const {
    return placement_.state == Part::kFull ? full : ShardOf(full, block);
  }
  // Returns the distance in elements between the starts of the parts that neighboring shards update, or 0 if all ranks
  // update the full group.
  int64_t owned_stride() const { return placement_.state == Part::kFull ? 0 : layout_.shard_elements(); }

 private:
  int Shard(int rank) const { return placement_.mesh.index(rank, MeshAxis::kShard); }
  int Replica(int rank) const { return placement_.mesh.index(rank, MeshAxis::kReplicate); }

  ShardLayout layout_;
  Placement placement_;
};

}  // namespace shale
