#include "tests/kernels/cuda/host/host_op.h"

#include <utility>

#include "absl/strings/string_view.h"
#include "tests/kernels/cuda/host/host_view.h"
#include "tests/kernels/cuda/host/stream.h"

namespace shale::cuda_on_host {

absl::Status EnqueueHostOp(const HostOps& ops, const Op& op, Scratch scratch, cuda::StreamHandle stream) {
  Op seen = op;
  VisitOperands(seen, [](absl::string_view, Tensor& t, Access) { t.data = HostViewOf(t.data); });
  scratch.data = HostViewOf(scratch.data);
  auto* host_stream = static_cast<Stream*>(stream);
  auto run = [&ops, seen = std::move(seen), scratch] { return ops.Run(seen, scratch); };
  return host_stream != nullptr && host_stream->submit ? host_stream->submit(std::move(run)) : run();
}

}  // namespace shale::cuda_on_host
