// CreateHostMatMuls: the MatMulBackend for the stand-in runtime, in place of cuBLASLt. A CPU Ops computes the matmuls.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/backends.h"
#include "kernels/op_backend.h"

namespace shale::cuda_on_host {

// Creates the backend. `ops` must be a HostOps, as those of CreateReferenceOps and CreateCpuOps are. Returns
// InvalidArgument for others. Each matmul runs in FIFO order on the stream that it is enqueued on, on the host's view
// of device memory.
absl::StatusOr<std::unique_ptr<cuda::MatMulBackend>> CreateHostMatMuls(std::unique_ptr<Ops> ops);

}  // namespace shale::cuda_on_host
