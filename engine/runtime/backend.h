// Backend: makes what the ranks of a process run on. A kind of device is one implementation; nothing above it knows
// which.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/memory/budget.h"
#include "engine/memory/machine.h"
#include "kernels/device/device.h"
#include "kernels/dtype.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"

namespace shale {

// A factory; what it made does not refer to it. Thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;

  // The ops of one of `ranks` ranks, on `device`, one of CreateDevices. Null: for planning, which asks for sizes alone
  // and may do so on a machine without such a device.
  virtual std::unique_ptr<Ops> CreateOps(int64_t ranks, const Device* device) const = 0;

  // The device of each rank; ranks may share one. Synchronous: work runs one piece at a time, so that an error is that
  // of the call which enqueued it. FailedPrecondition if the machine has not the devices.
  virtual absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const = 0;

  // Communicators between ranks on these devices, in rank order. Each group is used on one stream of each rank.
  virtual absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(
      const std::vector<std::shared_ptr<Device>>& devices) const = 0;

  // What one of `ranks` ranks may plan where the job does not say: a share of this machine's devices, and of its
  // memory. FailedPrecondition if it has not those for so many.
  virtual absl::StatusOr<Budget> DefaultBudget(int64_t ranks) const = 0;

  // What planning asks of it. Borrows the backend.
  Machine machine() const {
    return {.create_ops = [this](int64_t ranks) { return CreateOps(ranks, /*device=*/nullptr); },
            .default_budget = [this](int64_t ranks) { return DefaultBudget(ranks); }};
  }

  // Peak FLOP/s of a device's products of `dtype`, as its maker states it; 0: measure it.
  virtual double NominalPeakFlops(DType dtype) const { return 0; }

  // How many of `ranks` ranks have a device together, and with it its FLOP/s.
  virtual int64_t RanksSharing(int64_t ranks) const { return 1; }

  // Whether its libraries take memory of the device when they are first used, so that they are to be used once before
  // the rest is given out (see World).
  virtual bool warms_up() const { return false; }

  // Whether an arena of `arena_bytes` for each rank fits into what the devices have now. ResourceExhausted says how
  // much is missing, and what holds the rest.
  virtual absl::Status CheckMemory(const std::vector<std::shared_ptr<Device>>& devices, int64_t arena_bytes) const {
    return absl::OkStatus();
  }

  // A line for people about `devices`: which they are, with what libraries, what is in use beside the arenas. Empty:
  // there is nothing to tell.
  virtual std::string Describe(const std::vector<std::shared_ptr<Device>>& devices) const { return ""; }
};

}  // namespace shale
