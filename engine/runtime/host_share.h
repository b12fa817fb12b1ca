// HostShare: which of a host's devices are those of one process, where several processes of a job share the host.
#pragma once

#include <cstdint>

namespace shale {

// The ranks of a host are counted in the order of its processes, and take its devices in this order.
struct HostShare {
  int64_t ranks = 0;          // Of this process. 0: the job has no other process.
  int64_t ranks_before = 0;   // Of the processes before this one on its host.
  int64_t ranks_on_host = 0;  // Of all processes on its host.
};

}  // namespace shale
