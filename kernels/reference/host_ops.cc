#include "kernels/reference/host_ops.h"

#include "kernels/check.h"
#include "kernels/device/cpu/cpu_stream.h"

namespace shale {

absl::Status HostOps::Enqueue(const Op& op, Scratch scratch, Stream& stream) {
  auto* cpu_stream = dynamic_cast<CpuStream*>(&stream);
  SHALE_CHECK(cpu_stream != nullptr) << NameOf(op) << ": launched on a stream of another device";
  return cpu_stream->Enqueue([this, op, scratch] { return Run(op, scratch); });
}

}  // namespace shale
