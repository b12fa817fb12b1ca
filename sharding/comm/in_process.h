// Communicators between the threads of one process.
//
// Each collective is work on the rank's CpuStream. In that work the ranks meet, read one another's buffers, and leave
// when all are done. Sums are computed in rank order in the element type, each element by one rank, so that results are
// equal on all ranks and from run to run. A collective uses no memory besides its operands.
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
// Errors of a collective are errors of its stream. All ranks get InvalidArgument if they want different collectives (it
// says which rank wanted what), DeadlineExceeded if a rank does not come in time, and Aborted with the culprit and its
// reason if a rank aborts or its communicator is destroyed. After any of these the group is dead. Synchronize or
// destroy the streams that a communicator was used on before destroying the communicator.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcessGroup(
    int size, const InProcessGroupOptions& options = {});

}  // namespace shale
