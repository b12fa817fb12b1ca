#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/run/backends/cpu_backend.h"
#include "engine/run/train/reports.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Not;

// The CPU backend with a nominal bf16 peak, where half the ranks share a device. Records for how many ranks CreateOps
// was called.
class SharedBackend : public Backend {
 public:
  explicit SharedBackend(double nominal) : nominal_(nominal) {}

  std::unique_ptr<Ops> CreateOps(int64_t ranks, const Device* device) const override {
    asked_.push_back(ranks);
    return cpu_->CreateOps(ranks, device);
  }
  absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const override {
    return cpu_->CreateDevices(ranks, synchronous);
  }
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(const GroupMembers& group) const override {
    return cpu_->CreateGroup(group);
  }
  absl::StatusOr<Budget> DefaultBudget(int64_t ranks) const override { return cpu_->DefaultBudget(ranks); }
  double NominalPeakFlops(DType dtype) const override {
    if (IsFloat8(dtype)) return 2 * nominal_;
    return dtype == DType::kBFloat16 ? nominal_ : 0;
  }
  int64_t RanksSharing(int64_t ranks) const override { return ranks / 2; }

  const std::vector<int64_t>& asked() const { return asked_; }

 private:
  const double nominal_;
  const std::unique_ptr<Backend> cpu_ = CreateCpuBackend();
  mutable std::vector<int64_t> asked_;
};

TEST(PeakFlopsTest, IsARanksShareOfTheNominalPeakWithoutMeasuring) {
  const SharedBackend backend(12e12);
  const absl::StatusOr<double> peak = PeakFlops(backend, DType::kBFloat16, 8);
  ASSERT_TRUE(peak.ok()) << peak.status();
  EXPECT_EQ(*peak, 3e12);
  EXPECT_THAT(backend.asked(), IsEmpty());
}

TEST(PeakFlopsTest, ThatOfFp8IsNominalOrNotKnown) {
  EXPECT_EQ(Float8PeakFlops(SharedBackend(12e12), 8), 6e12);
  EXPECT_EQ(Float8PeakFlops(SharedBackend(0), 8), 0);
}

TEST(PeakFlopsTest, IsElseMeasuredWithTheOpsOfOneOfSoManyRanks) {
  const SharedBackend backend(12e12);
  const absl::StatusOr<double> peak = PeakFlops(backend, DType::kFloat32, 4);
  ASSERT_TRUE(peak.ok()) << peak.status();
  EXPECT_GT(*peak, 0);
  EXPECT_THAT(backend.asked(), Not(IsEmpty()));
  EXPECT_THAT(backend.asked(), Each(4));
}

}  // namespace
}  // namespace shale::testing
