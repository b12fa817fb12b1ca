// Our CUDA kernels, each started by the op that it computes (formulas and aliasing: kernels/ops.h).
//
// Every function enqueues a bound and valid op on `stream`, owns nothing and needs no scratch. An error is that of the
// launch; on the host (kernels/cuda/host) also what the kernel did wrong.
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/pack.h"
#include "kernels/ops.h"

namespace shale::cuda {

// norm.cu
absl::Status Run(const RmsNormForward& op, StreamHandle stream);
// activation.cu
absl::Status Run(const SwiGluForward& op, StreamHandle stream);
absl::Status Run(const SwiGluBackward& op, StreamHandle stream);

}  // namespace shale::cuda
