// Backend: creates the devices, ops and communicators of the ranks of one process. There is one implementation for each
// kind of device. Of the code above this interface, only RankRuntime asks for the kind: whether the device is the host,
// whose streams are threads of this process (CpuStream), and how long these have waited.
//
// HostShare: which of a host's devices are those of one process, where several processes of a job share the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/compile/memory/machine.h"
#include "kernels/device/device.h"
#include "kernels/dtype.h"
#include "kernels/hardware_threads.h"
#include "kernels/op_backend.h"
#include "sharding/comm/communicator.h"

namespace shale {

// The ranks of a host are counted in the order of its processes, and take its devices in this order.
struct HostShare {
  int64_t ranks = 0;          // Of this process. 0: the job has no other process.
  int64_t ranks_before = 0;   // Of the processes before this one on its host.
  int64_t ranks_on_host = 0;  // Of all processes on its host.
};

// A group of ranks that communicate, as seen by a process that holds some of them.
struct GroupMembers {
  std::string name;         // Names the group and the stream that it is used on. Equal in all processes.
  int size = 0;             // The number of ranks in the group, over all processes.
  std::vector<int> places;  // The places in the group of this process's ranks, ascending.
  std::vector<std::shared_ptr<Device>> devices;  // Of this process's ranks.
  std::vector<int> processes;                    // The process of each place. Empty: all are in this process.

  // Returns the group of one rank on each of these devices, all in this process.
  static GroupMembers OfOneProcess(const std::vector<std::shared_ptr<Device>>& devices) {
    GroupMembers group{.name = "of one process", .size = static_cast<int>(devices.size()), .devices = devices};
    for (int place = 0; place < group.size; ++place) group.places.push_back(place);
    return group;
  }
  bool spans_processes() const { return size != static_cast<int>(devices.size()); }
  // Returns Unimplemented if the group has ranks of other processes.
  absl::Status CheckOneProcess() const {
    if (!spans_processes()) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("group ", name, " has ", size, " ranks, ", devices.size(),
                     " of them in this process; this backend joins the ranks of one process only"));
  }
};

// Creates a communicator for each rank of a group that this process holds, in the order of GroupMembers::places.
using GroupFactory =
    std::function<absl::StatusOr<std::vector<std::unique_ptr<Communicator>>>(const GroupMembers& group)>;

// A factory. The objects that it creates do not refer to it. Thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;

  // Creates the ops of one of `ranks` ranks on `device`, which CreateDevices returned. With a null `device` the ops are
  // for planning: they are only asked for sizes, and the machine need not have such a device.
  virtual std::unique_ptr<Ops> CreateOps(int64_t ranks, const Device* device) const = 0;

  // Returns the device of each rank; ranks may share one. If `synchronous`, every call that enqueues work also waits
  // for it, so that an error is returned by the call that caused it. Returns FailedPrecondition if the machine lacks
  // the devices.
  virtual absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const = 0;

  // Creates a communicator for each rank of the group that this process holds, in the order of GroupMembers::places.
  // Each group is used on one stream of each rank. Processes create their groups in the same order. Returns
  // Unimplemented if the group has ranks of several processes and the backend cannot join them.
  virtual absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(const GroupMembers& group) const = 0;

  // Returns the memory that one of `ranks` ranks may plan for if the job sets no budget: a share of this machine's
  // devices and of its host memory. Returns FailedPrecondition if the machine lacks the devices for that many ranks.
  virtual absl::StatusOr<Budget> DefaultBudget(int64_t ranks) const = 0;

  // Returns the properties of this machine that planning needs. The result borrows the backend.
  Machine machine() const {
    return {.create_ops = [this](int64_t ranks) { return CreateOps(ranks, /*device=*/nullptr); },
            .default_budget = [this](int64_t ranks) { return DefaultBudget(ranks); },
            .hardware_threads = HardwareThreads(),
            .cpu_matmuls = cpu_matmuls()};
  }

  // Returns what computes the matmuls of ops on the CPU, or kAuto if nothing does.
  virtual CpuMatMuls cpu_matmuls() const { return CpuMatMuls::kAuto; }

  // Returns the peak FLOP/s of one device for matmuls of `dtype`, as its maker states it, or 0 if it must be measured.
  virtual double NominalPeakFlops(DType dtype) const { return 0; }

  // Returns the name of the first device, as its driver names it. Empty if the devices are the CPUs of the host.
  virtual std::string device_name() const { return ""; }

  // Returns the compute capability of the first device, major and minor: {9, 0} for Hopper. {0, 0} if it has none.
  virtual std::pair<int, int> compute_capability() const { return {0, 0}; }

  // Returns how many of `ranks` ranks share one device and its FLOP/s.
  virtual int64_t RanksSharing(int64_t ranks) const { return 1; }

  // Returns whether the backend's libraries take device memory when they are first used. They are then used once before
  // the arenas are allocated (see LocalRanks).
  virtual bool warms_up() const { return false; }

  // Returns how much of a device's memory may be taken after CheckMemory, which leaves as much free, before a run says
  // so. The largest number if nobody can tell who takes it, as where processes share the device.
  virtual int64_t late_bytes() const { return 0; }

  // Checks that an arena of `arena_bytes` per rank, and what libraries may take later, fit into the memory that the
  // devices have free now.
  // If not, returns ResourceExhausted, whose message says how much memory is free and how much is wanted.
  virtual absl::Status CheckMemory(const std::vector<std::shared_ptr<Device>>& devices, int64_t arena_bytes) const {
    return absl::OkStatus();
  }

  // Returns a text for people about `devices`: their names, their libraries, and the memory in use outside the arenas.
  // Empty if there is nothing to say.
  virtual std::string Describe(const std::vector<std::shared_ptr<Device>>& devices) const { return ""; }
};

// Returns a machine with the ops of `backend`, which it owns, without a default budget. It need not be this machine:
// its CPUs run `hardware_threads` threads at once.
inline Machine PlanningMachineOf(std::shared_ptr<const Backend> backend, int64_t hardware_threads) {
  const CpuMatMuls cpu_matmuls = backend->cpu_matmuls();
  return {.create_ops =
              [backend = std::move(backend)](int64_t ranks) { return backend->CreateOps(ranks, /*device=*/nullptr); },
          .hardware_threads = hardware_threads,
          .cpu_matmuls = cpu_matmuls};
}

}  // namespace shale
