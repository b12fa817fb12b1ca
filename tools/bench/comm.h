// The comm bench: times the collectives between ranks. The program passes the kinds of ranks (comm_main.cc). They are
// threads of this process; if a launcher started the program several times, each process is a rank.
//
// The bandwidths are those of nccl-tests, for n ranks and a full vector (all ranks' shards together) of `size` bytes:
//   algbw = size / time
//   busbw = algbw (n - 1) / n for AllGather, ReduceScatterSum and AllToAll, algbw 2 (n - 1) / n for AllReduceSum.
// Ranks of --device=tcp are connected over TCP, also those that are threads; those of --device=gloo read the memory of
// other processes, as they do in a job on one host. Ranks that are threads of the CPU, or that share a GPU, use no bus.
// Their bound is what all ranks together read and write in memory,
//   AllGather         n size read, n size written
//   ReduceScatterSum  n size read,   size written
//   AllReduceSum      n size read,   size written, then (n - 1) size read and written
//   AllToAll          n size read, n size written
// The bench compares this with n streams that each copy a vector of the same size at the same time.
//
// Sums are fp32, the only type in which collectives sum gradients. AllToAll has bf16, as gradients that leave in bf16.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "sharding/comm/communicator.h"
#include "sharding/comm/control_plane.h"

namespace shale {

// The ranks of one group that are in this process, and their devices. The communicators are destroyed before the
// devices.
struct CommRanks {
  std::vector<std::shared_ptr<Device>> devices;  // One for each rank here; ranks may share a device.
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::string about;  // Describes the hardware in one line.
};

struct CommKind {
  std::string device;              // Its name in --device.
  bool shares_devices = false;     // Whether ranks may share a device; --ranks_per_device sets how many do.
  int usual_ranks_per_device = 0;  // Without --ranks_per_device. 0: all.
  bool host_memory = true;         // Whether the host may write memory that the devices allocate.
  bool thread_per_rank = false;    // Whether enqueuing waits for the other ranks, so that each needs its own thread.
  std::function<absl::StatusOr<CommRanks>(int ranks, int ranks_per_device)> create;
};

// Runs the tool and returns its exit code. The first of `kinds` is the default of --device. If `control` joins several
// processes, each of them has one rank, and the first prints. REQUIRES: kinds is not empty.
int BenchComm(int argc, char** argv, const std::vector<CommKind>& kinds, ControlPlane& control = OneProcess());

}  // namespace shale
