// A device on stand-ins for CUDA and NCCL.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "sharding/comm/nccl/nccl.h"
#include "tests/kernels/device/cuda/device_on_stand_in.h"
#include "tests/sharding/comm/communicator_conformance.h"
#include "tests/sharding/comm/nccl/stand_in_nccl.h"

namespace shale {

// Returns a pointer that does not own `object`, which must outlive it.
template <class T>
std::shared_ptr<T> Borrow(T& object) {
  return std::shared_ptr<T>(std::shared_ptr<void>(), &object);
}

// The destructor expects that neither CUDA nor NCCL was misused or has anything left.
class DeviceWithNccl : public DeviceOnStandIn {
 public:
  using DeviceOnStandIn::DeviceOnStandIn;
  ~DeviceWithNccl() override {
    EXPECT_THAT(nccl_.misuse(), ::testing::IsEmpty());
    EXPECT_EQ(nccl_.live(), 0);
  }
  StandInNccl& nccl() { return nccl_; }

  Group CreateGroup(int size, const NcclOptions& options = {.timeout_seconds = 0}) {
    absl::StatusOr<Group> group =
        CreateNcclGroup(Borrow<NcclApi>(nccl_), Borrow<CudaRuntime>(runtime()), std::vector<int>(size, 0), options);
    EXPECT_TRUE(group.ok()) << group.status();
    return *std::move(group);
  }

 private:
  StandInNccl nccl_;
};

}  // namespace shale
