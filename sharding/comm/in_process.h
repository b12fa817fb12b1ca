// Communicators between the threads of one process.
//
// Each collective is work on the rank's CpuStream. In that work the ranks meet, read one another's buffers, and leave
// when all are done. Sums are computed in rank order and in the element type. One rank computes each element, so that
// results are equal on all ranks and from run to run. A collective allocates no memory besides its operands; an
// AllToAll copies its list of pieces.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/comm/communicator.h"

namespace shale {

struct InProcessGroupOptions {
  // How long a rank waits in a collective for its peers before the group fails. 0: forever.
  double timeout_seconds = 600;
};

// Creates one communicator per rank, in rank order, for use on CpuStreams. Sums (also of ReduceScatterSum) take f32,
// f64 and i64.
//
// An error of a collective becomes the error of its stream. All ranks get InvalidArgument if they want different
// collectives (the message says which rank wanted what), DeadlineExceeded if a rank does not come in time, and Aborted
// if a rank aborts or its communicator is destroyed (the message names the rank and its reason). After any of these
// errors, every collective of the group fails. Synchronize or destroy the streams that a communicator was used on
// before you destroy the communicator.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcessGroup(
    int size, const InProcessGroupOptions& options = {});

}  // namespace shale
