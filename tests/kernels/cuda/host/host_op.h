// EnqueueHostOp: lets an Ops of the host compute an op on a stream of the stand-in runtime.
#pragma once

#include "absl/status/status.h"
#include "kernels/device/cuda/handles.h"
#include "kernels/op.h"
#include "kernels/op_backend.h"
#include "kernels/reference/host_ops.h"

namespace shale::cuda_on_host {

// Runs `op` in FIFO order on the stream, on the host's view of device memory. A stream that takes no work to run later,
// or a null one, runs it at once. `ops` must outlive the work.
absl::Status EnqueueHostOp(const HostOps& ops, const Op& op, Scratch scratch, cuda::StreamHandle stream);

}  // namespace shale::cuda_on_host
