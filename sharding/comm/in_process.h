// Communicators between the threads of one process.
//
// Each collective is work on the rank's CpuStream. There the ranks meet, read one another's buffers, and part when all
// are done. Sums are formed in rank order in the element type, each element by one rank, so that results are equal on
// all ranks and from run to run. Nothing is buffered: no memory besides the operands.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/comm/communicator.h"

namespace shale {

struct InProcessGroupOptions {
  // How long a rank waits in a collective for its peers before the group is given up. 0: for ever.
  double timeout_seconds = 600;
};

// One communicator per rank, in rank order, to be used on CpuStreams. Sums (ReduceScatterSum too) take f32, f64 and
// i64.
//
// Errors of a collective are those of its stream. All ranks get InvalidArgument when they want different collectives
// (it says which rank wanted what), DeadlineExceeded when one does not come in time, and Aborted with the culprit and
// its reason when one aborts or is destroyed. After any of these the group is dead. The streams that a communicator was
// given must have been synchronized or destroyed when it is destroyed.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateInProcessGroup(
    int size, const InProcessGroupOptions& options = {});

}  // namespace shale
