// Adafactor on a CPU. The reference and the fast CPU backend share this function.
#pragma once

#include "absl/status/status.h"
#include "kernels/op_kinds.h"

namespace shale {

absl::Status RunOnHost(const Adafactor& op);

}  // namespace shale
