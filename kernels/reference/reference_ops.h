// The reference backend, which is the specification of every op. It has plain loops, computes in fp64, uses no scratch,
// and is slow on purpose.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "kernels/op_backend.h"

namespace shale {

std::unique_ptr<Ops> CreateReferenceOps();

// Runs one bound op on the calling thread. In addition to what Validate admits, operands that should be f32 or bf16 may
// be f64 (some or all of them). Values in f64 operands are not rounded, which finite differences need.
absl::Status RunReference(const Op& op);

}  // namespace shale
