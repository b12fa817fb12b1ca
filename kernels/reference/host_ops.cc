#include "kernels/reference/host_ops.h"

namespace shale {

absl::Status HostOps::Enqueue(const Op& op, Scratch scratch, Stream& stream) {
  return stream.RunOnHost([this, op, scratch] { return Run(op, scratch); });
}

}  // namespace shale
