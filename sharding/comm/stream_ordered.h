// Communicators between ranks of one process whose streams run on one device, or on several devices that can access one
// another's memory.
//
// A collective consists of copies and sums on the rank's own stream. Events order the work of the ranks. The ranks meet
// on the host, in the threads that enqueue, for two reasons: they learn one another's addresses, and no rank enqueues a
// wait for an event before its owner has recorded it (such a wait would have no effect). The host never waits for a
// stream.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device/device.h"
#include "kernels/dtype.h"
#include "sharding/comm/communicator.h"

namespace shale {

// Enqueues the sum out[i] = (inputs[0][i] + inputs[1][i]) + inputs[2][i] + ..., in the element type: f32, f64 or i64
// (which wraps). `out` is one of the inputs or overlaps none. `elements` is above 0. `inputs` itself is valid only
// during the call.
using EnqueueSumRanks = std::function<absl::Status(DType dtype, absl::Span<const std::byte* const> inputs,
                                                   std::byte* out, int64_t elements, Stream& stream)>;

struct StreamOrderedGroupOptions {
  EnqueueSumRanks sum_ranks;
  // How long a rank waits for its peers to enqueue the same collective before the group fails. 0: forever.
  double timeout_seconds = 600;
};

// Creates one communicator per rank, in rank order, for streams of `devices[rank]`. Sums are computed in rank order.
// One rank computes each element, so that results are equal on all ranks and from run to run.
//
// The call that enqueues a collective returns the errors of the group. All ranks get InvalidArgument if they want
// different collectives (the message says which rank wanted what), DeadlineExceeded if a rank does not come in time,
// and Aborted if a rank aborts or its communicator is destroyed (the message names the rank and its reason). After any
// of these errors, every collective of the group fails.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateStreamOrderedGroup(
    const std::vector<std::shared_ptr<Device>>& devices, const StreamOrderedGroupOptions& options);

}  // namespace shale
