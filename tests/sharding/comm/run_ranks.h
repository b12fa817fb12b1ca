// RunRanks: work of every rank of a group, each on a stream of its own.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device/cpu/cpu_device.h"
#include "tests/sharding/comm/communicator_conformance.h"

namespace shale {

// Runs `enqueue` on every rank, each with a stream. Returns the error of `enqueue`, or else the status of the stream,
// by rank.
inline std::vector<absl::Status> RunRanks(int ranks, const std::function<absl::Status(int, Stream&)>& enqueue) {
  CpuDevice device;
  std::vector<absl::Status> statuses(ranks);
  ForEachRank(ranks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device.CreateStream("comm");
    absl::Status enqueued = enqueue(rank, *stream);
    absl::Status ran = stream->Synchronize();
    statuses[rank] = enqueued.ok() ? ran : enqueued;
  });
  return statuses;
}

}  // namespace shale
