// Products on a stand-in stream, by an Ops of the CPU: what cuBLASLt is on a GPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/backends.h"
#include "kernels/op_backend.h"

namespace shale::cuda_on_host {

// `ops` runs in the calling thread (CreateReferenceOps, CreateCpuOps); others are refused. Each product runs at its
// turn of the stream that it is enqueued on, on the host's view of device memory.
absl::StatusOr<std::unique_ptr<cuda::ProductBackend>> CreateHostProducts(std::unique_ptr<Ops> ops);

}  // namespace shale::cuda_on_host
