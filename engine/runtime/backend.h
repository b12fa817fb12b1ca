// Backend: makes what the ranks of a process run on. A kind of device is one implementation; nothing above it knows
// which.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"

namespace shale {

// A factory; what it made does not refer to it. Thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;

  // The ops of one rank. Planning asks them for scratch sizes, so they can be made on a machine without the device.
  virtual std::unique_ptr<Ops> CreateOps() const = 0;

  // The device of each rank; ranks may share one. Synchronous: work runs one piece at a time, so that an error is that
  // of the call which enqueued it. Unavailable if the machine has no such device.
  virtual absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const = 0;

  // Communicators between ranks on these devices, in rank order. Each group is used on one stream of each rank.
  virtual absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(
      const std::vector<std::shared_ptr<Device>>& devices) const = 0;
};

}  // namespace shale
