// Declares one function per op, which computes the op on bound tensors. Each stands in a source of kernels/reference
// with the name of the op or of its family. Private to kernels/reference.
#pragma once

#include "absl/status/status.h"
#include "kernels/op_kinds.h"

namespace shale::reference {

// Computes an op. Those for which there is a RunOnHost (scalar_ops.h) are computed by that, and have no Reference.
#define SHALE_DECLARE(Kind) absl::Status Reference(const Kind& op);
SHALE_EACH_OP_KIND(SHALE_DECLARE)
#undef SHALE_DECLARE

}  // namespace shale::reference
