// Compares sums over ranks with those of the CPU, bit for bit.
#include "sharding/comm/sum_ranks.h"

#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"

namespace shale::testing {
namespace {

template <class T>
std::vector<T> RandomValues(int64_t n, std::mt19937_64& random) {
  std::lognormal_distribution<double> wide(0, 6);
  std::vector<T> values(n);
  for (T& value : values) value = static_cast<T>(random() % 2 == 0 ? wide(random) : -wide(random));
  return values;
}

// `shift` is the number of elements by which all addresses miss an alignment of 16 bytes.
template <class T>
void ExpectSameBits(DType dtype, int ranks, int64_t n, int64_t shift, bool in_place) {
  std::mt19937_64 random(ranks * 1000 + n);
  std::vector<std::vector<T>> data;
  std::vector<const std::byte*> inputs;
  for (int rank = 0; rank < ranks; ++rank) data.push_back(RandomValues<T>(n + shift, random));
  for (const auto& values : data) inputs.push_back(reinterpret_cast<const std::byte*>(values.data() + shift));
  std::vector<T> want(n + shift), got(n + shift);
  SumRanks(dtype, inputs, reinterpret_cast<std::byte*>(want.data() + shift), n);
  std::vector<T>& out = in_place ? data[ranks / 2] : got;
  const absl::Status status =
      cuda::SumRanks(dtype, inputs, reinterpret_cast<std::byte*>(out.data() + shift), n, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(std::memcmp(out.data() + shift, want.data() + shift, n * sizeof(T)), 0)
      << ranks << " ranks, " << n << " elements, shift " << shift;
}

TEST(SumRanksTest, HasTheBitsOfTheSumInRankOrder) {
  for (int ranks : {1, 2, 3, 8, 64}) {
    for (int64_t n : {1, 5, 4099}) {
      for (bool in_place : {false, true}) {
        ExpectSameBits<float>(DType::kFloat32, ranks, n, 0, in_place);
        ExpectSameBits<float>(DType::kFloat32, ranks, n, 3, in_place);
        ExpectSameBits<double>(DType::kFloat64, ranks, n, 1, in_place);
        ExpectSameBits<int64_t>(DType::kInt64, ranks, n, 0, in_place);
      }
    }
  }
}

TEST(SumRanksTest, RefusesWhatItCannotSum) {
  std::vector<const std::byte*> inputs(65);
  EXPECT_EQ(cuda::SumRanks(DType::kFloat32, inputs, nullptr, 1, nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cuda::SumRanks(DType::kFloat32, {}, nullptr, 1, nullptr).code(), absl::StatusCode::kInvalidArgument);
  inputs.resize(1);
  EXPECT_EQ(cuda::SumRanks(DType::kBFloat16, inputs, nullptr, 1, nullptr).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace shale::testing
