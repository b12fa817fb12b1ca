#include "kernels/reference/host_ops.h"

#include "kernels/check.h"
#include "kernels/device/cpu/cpu_stream.h"

namespace shale {

absl::Status HostOps::Enqueue(const Op& op, Scratch scratch, Stream& stream) {
  SHALE_ASSIGN_OR_RETURN(CpuStream * cpu_stream, CpuStream::From(stream));
  return cpu_stream->Enqueue([this, op, scratch] { return Run(op, scratch); });
}

}  // namespace shale
