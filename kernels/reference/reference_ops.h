// The specification of every op: plain loops, fp64 arithmetic, no scratch. Slow on purpose.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "kernels/op_backend.h"

namespace shale {

std::unique_ptr<Ops> CreateReferenceOps();

// Runs one bound op on the calling thread. Beside what Validate admits, f32 and bf16 operands may be f64 (all of them,
// or some): then nothing is rounded on the way, which is what finite differences need.
absl::Status RunReference(const Op& op);

}  // namespace shale
