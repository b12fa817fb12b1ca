#include <cstring>
#include <random>

#include "tests/sharding/comm/communicator_conformance.h"

namespace shale {

void ExpectSumsInRankOrder(Group& group, Device& device, int64_t elements) {
  const int ranks = static_cast<int>(group.size());
  std::vector<std::vector<float>> data(ranks, std::vector<float>(elements));
  std::mt19937 random(7);
  std::lognormal_distribution<float> wide(0, 8);
  for (auto& vector : data) {
    for (float& x : vector) x = random() % 2 == 0 ? wide(random) : -wide(random);
  }
  std::vector<float> expected = data[0];
  for (int rank = 1; rank < ranks; ++rank) {
    for (int64_t i = 0; i < elements; ++i) expected[i] += data[rank][i];
  }
  ForEachRank(ranks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device.CreateStream("reduce");
    const DeviceVector<float> own(device, data[rank], *stream);
    ASSERT_TRUE(group[rank]->AllReduceSum(own.View(), *stream).ok());
    const std::vector<float> found = own.Read(*stream);
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), elements * sizeof(float)), 0) << rank;
  });
}

}  // namespace shale
