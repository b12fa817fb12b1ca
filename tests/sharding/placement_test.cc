#include "sharding/placement.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

constexpr Strategy kStrategies[] = {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard};

TEST(PlacementTest, EachStrategyShardsWhatTheOnesBeforeItShard) {
  const Mesh mesh{.shard = 4};
  const auto of = [&](Strategy strategy) { return Placement::Of(strategy, /*once_a_step=*/false, mesh); };
  EXPECT_EQ(of(Strategy::kDdp), (Placement{Part::kFull, Part::kFull, Part::kFull, mesh}));
  EXPECT_EQ(of(Strategy::kZero1), (Placement{Part::kFull, Part::kShard, Part::kFull, mesh}));
  EXPECT_EQ(of(Strategy::kZero2), (Placement{Part::kFull, Part::kShard, Part::kShard, mesh}));
  EXPECT_EQ(of(Strategy::kFullShard), (Placement{Part::kShard, Part::kShard, Part::kShard, mesh}));
  EXPECT_EQ(Placement::Of(Strategy::kFullShard, /*once_a_step=*/true, mesh).gradients, Part::kFull);
}

TEST(PlacementTest, StrategiesDifferInWhatAStepCommunicates) {
  const Mesh mesh{.shard = 4};
  for (const Strategy strategy : kStrategies) {
    SCOPED_TRACE(std::string(ToString(strategy)));
    const Placement placement = Placement::Of(strategy, /*once_a_step=*/false, mesh);
    EXPECT_TRUE(placement.reduces());
    EXPECT_EQ(placement.gathers_for_use(), strategy == Strategy::kFullShard);
    EXPECT_EQ(placement.gathers_after_update(), strategy == Strategy::kZero1 || strategy == Strategy::kZero2);
    EXPECT_EQ(placement.reduces_full_gradients(), strategy == Strategy::kDdp || strategy == Strategy::kZero1);
    EXPECT_EQ(placement.reduction(),
              strategy == Strategy::kDdp ? CollectiveKind::kAllReduceSum : CollectiveKind::kReduceScatterSum);
  }
}

TEST(PlacementTest, OneRankHoldsEverythingAndCommunicatesNothing) {
  for (const Strategy strategy : kStrategies) {
    const Placement placement = Placement::Of(strategy, /*once_a_step=*/true, Mesh{});
    EXPECT_EQ(placement, Placement{});
    EXPECT_FALSE(placement.reduces() || placement.gathers_for_use() || placement.gathers_after_update());
  }
}

// The following holds under every strategy, on a mesh with replicas of every shard. The ranks together save every
// element once. A rank updates only elements whose weights it holds. Tensors of a shard lie where the ranges say.
TEST(GroupPlacementTest, RangesTensorsAndSavedPiecesAgree) {
  const Mesh mesh{.replicate = 2, .shard = 3};
  const std::vector<ShardLayout::Entry> entries = {{"a", {200}}, {"b", {9, 10}}, {"c", {7}}};
  for (const Strategy strategy : kStrategies) {
    SCOPED_TRACE(std::string(ToString(strategy)));
    const GroupPlacement group(ShardLayout::Create(entries, 3, /*block=*/256).value(),
                               Placement::Of(strategy, /*once_a_step=*/false, mesh));
    const int64_t full = group.layout().padded_elements();
    std::vector<int> saved(full);
    EXPECT_EQ(group.placement().sums_over_replicas(), strategy != Strategy::kDdp);
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const ElementRange weights = group.Weights(rank), owned = group.Owned(rank),
                         shard = group.Range(Part::kShard, rank);
      EXPECT_EQ(Intersect(weights, owned), owned);
      EXPECT_EQ(Intersect(owned, shard), shard);
      EXPECT_EQ(weights.end - weights.begin, group.elements(group.placement().weights));
      EXPECT_EQ(owned.end - owned.begin, group.elements(group.placement().state));
      EXPECT_EQ(owned.begin, mesh.index(rank, MeshAxis::kShard) * group.owned_stride());
      for (const ShardLayout::Piece& piece : group.Saved(rank)) {
        for (int64_t i = piece.range.begin; i < piece.range.end; ++i) {
          ++saved[group.layout().parameters()[piece.parameter].offset_elements + i];
        }
        EXPECT_EQ(group.layout().parameters()[piece.parameter].offset_elements + piece.range.begin,
                  shard.begin + piece.shard_offset);
      }
    }
    int64_t elements = 0;
    for (int times : saved) {
      EXPECT_LE(times, 1);
      elements += times;
    }
    EXPECT_EQ(elements, 200 + 90 + 7);

    const Tensor vector = Tensor::Contiguous(DType::kBFloat16, {full});
    const Tensor shard = group.ShardOf(vector);
    EXPECT_EQ(shard.elements(), full / 3);
    EXPECT_EQ(shard.where.shard_stride_bytes, full / 3 * 2);
    const Tensor scales = group.ShardOf(Tensor::Contiguous(DType::kFloat32, {full / 256}), 256);
    EXPECT_EQ(scales.elements(), full / 256 / 3);
    EXPECT_EQ(group.OwnedOf(vector).elements(), group.elements(group.placement().state));
  }
}

}  // namespace
}  // namespace shale
