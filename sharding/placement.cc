#include "sharding/placement.h"

#include "kernels/check.h"

namespace shale {

absl::string_view ToString(Strategy strategy) {
  switch (strategy) {
    case Strategy::kDdp: return "DDP";
    case Strategy::kZero1: return "ZERO1";
    case Strategy::kZero2: return "ZERO2";
    case Strategy::kFullShard: return "FULL_SHARD";
  }
  return "?";
}

Placement Placement::Of(Strategy strategy, bool once_a_step, const Mesh& mesh) {
  Placement placement{.mesh = mesh};
  if (mesh.shard == 1) return placement;
  if (strategy >= Strategy::kZero1) placement.state = Part::kShard;
  if (strategy >= Strategy::kZero2 && !once_a_step) placement.gradients = Part::kShard;
  if (strategy >= Strategy::kFullShard) placement.weights = Part::kShard;
  return placement;
}

ElementRange GroupPlacement::Range(Part part, int rank) const {
  return part == Part::kFull ? ElementRange{0, layout_.padded_elements()} : layout_.ShardRange(Shard(rank));
}

Tensor GroupPlacement::ShardOf(const Tensor& full, int64_t block) const {
  const int64_t elements = layout_.shard_elements() / block;
  SHALE_CHECK(full.elements() == elements * placement_.mesh.shard) << full.ToString();
  return EqualShardOf(full);
}

Tensor GroupPlacement::EqualShardOf(const Tensor& full) const {
  const int64_t elements = full.elements() / placement_.mesh.shard;
  Tensor shard = full.Slice(0, 0, elements);
  shard.where.shard_stride_bytes = elements * SizeOf(full.dtype);
  return shard;
}

}  // namespace shale
