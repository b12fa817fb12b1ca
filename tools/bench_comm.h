// bench_comm: the collectives between the ranks of this process. A program says between which (bench_comm_main.cc).
//
// As nccl-tests defines them, with `size` the bytes of the whole vector (all ranks' shards together) and n ranks:
//   algbw = size / time
//   busbw = algbw (n - 1) / n for AllGather and ReduceScatterSum, algbw 2 (n - 1) / n for AllReduceSum.
// Between threads, or ranks that share a GPU, no bus is passed: what bounds a collective is the memory that all ranks
// read and write together,
//   AllGather         n size read, n size written
//   ReduceScatterSum  n size read,   size written
//   AllReduceSum      n size read,   size written, then (n - 1) size read and written
// which is held against n streams that each copy a vector of the same size meanwhile.
//
// Sums are fp32, in rank order: gradients are reduced in no other type, so that AllGather alone has a bf16 line.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "sharding/comm/communicator.h"

namespace shale {

// Members are destroyed from the last to the first.
struct CommRanks {
  std::vector<std::shared_ptr<Device>> devices;  // Of each rank.
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::string about;  // For people: what it is that they run on, in a line.
};

struct CommKind {
  std::string device;            // The name that --device gives it.
  bool shares_devices = false;   // Whether ranks may share a device: --ranks_per_device says how many.
  bool host_memory = true;       // Whether the host may write what devices allocate.
  bool thread_per_rank = false;  // Ranks meet where they enqueue, so that each needs a thread of its own for that.
  std::function<absl::StatusOr<CommRanks>(int ranks, int ranks_per_device)> create;
};

// The tool's main. REQUIRES: kinds is not empty; the first is the default of --device.
int BenchComm(int argc, char** argv, const std::vector<CommKind>& kinds);

}  // namespace shale
