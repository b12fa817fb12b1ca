// Matmuls for the stand-in runtime, computed by a CPU Ops: takes the place of cuBLASLt.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/backends.h"
#include "kernels/op_backend.h"

namespace shale::cuda_on_host {

// Creates the backend. `ops` must run in the calling thread, as those of CreateReferenceOps and CreateCpuOps do; others
// are refused. Each matmul runs in FIFO order on the stream that it is enqueued on, on the host's view of device
// memory.
absl::StatusOr<std::unique_ptr<cuda::MatMulBackend>> CreateHostMatMuls(std::unique_ptr<Ops> ops);

}  // namespace shale::cuda_on_host
