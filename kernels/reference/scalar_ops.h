// Ops on a handful of numbers, which the reference and the fast CPU backend share.
#pragma once

#include "absl/status/status.h"
#include "kernels/ops.h"

namespace shale {

absl::Status RunOnHost(const LossScale& op);
absl::Status RunOnHost(const FlagNonFinite& op);
absl::Status RunOnHost(const PrepareUpdate& op);
absl::Status RunOnHost(const ZeroRanges& op);

}  // namespace shale
