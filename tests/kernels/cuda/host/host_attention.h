// CreateHostAttention: an AttentionBackend for the stand-in runtime, in place of Shale's own kernels. Their tiles are
// larger than a short sequence, so they take half of the time of a step of a small model.
#pragma once

#include <memory>

#include "kernels/cuda/backends.h"

namespace shale::cuda_on_host {

// Creates the backend. `library` computes what it takes. The reference ops compute all else, in FIFO order on the
// stream that an op is enqueued on, on the host's view of device memory.
std::unique_ptr<cuda::AttentionBackend> CreateHostAttention(std::unique_ptr<cuda::AttentionBackend> library);

}  // namespace shale::cuda_on_host
