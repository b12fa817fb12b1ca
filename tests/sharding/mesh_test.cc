#include "sharding/mesh.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ElementsAre;

TEST(MeshTest, RowsShareACopyAndColumnsShareAShard) {
  const Mesh mesh{.replicate = 2, .shard = 3};
  EXPECT_EQ(mesh.ranks(), 6);
  EXPECT_THAT(mesh.Group(4, MeshAxis::kShard), ElementsAre(3, 4, 5));
  EXPECT_THAT(mesh.Group(4, MeshAxis::kReplicate), ElementsAre(1, 4));
  EXPECT_THAT(mesh.Group(4, MeshAxis::kAll), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(mesh.index(4, MeshAxis::kShard), 1);
  EXPECT_EQ(mesh.index(4, MeshAxis::kReplicate), 1);
  EXPECT_EQ(mesh.index(4, MeshAxis::kAll), 4);
}

// Along every axis the groups divide the ranks among them, and a rank stands in its group at its index.
TEST(MeshTest, GroupsDivideTheRanks) {
  for (int64_t replicate : {1, 2, 5}) {
    for (int64_t shard : {1, 3, 4}) {
      const Mesh mesh{replicate, shard};
      for (const MeshAxis axis : {MeshAxis::kShard, MeshAxis::kReplicate, MeshAxis::kAll}) {
        for (int rank = 0; rank < mesh.ranks(); ++rank) {
          const std::vector<int> group = mesh.Group(rank, axis);
          ASSERT_EQ(group.size(), mesh.size(axis));
          EXPECT_EQ(group[mesh.index(rank, axis)], rank);
          for (int member : group) EXPECT_EQ(mesh.Group(member, axis), group);
          EXPECT_EQ(mesh.Group(rank, mesh.Serving(axis)), group);
        }
      }
    }
  }
}

}  // namespace
}  // namespace shale
