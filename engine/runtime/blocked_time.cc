#include "engine/runtime/blocked_time.h"

#include "absl/status/statusor.h"
#include "kernels/device/cpu/cpu_stream.h"

namespace shale {

int64_t BlockedNs(RankRuntime& rank) {
  const absl::StatusOr<CpuStream*> stream = CpuStream::From(rank.stream(StreamId::kCompute));
  return stream.ok() ? (*stream)->blocked_ns() : 0;
}

}  // namespace shale
