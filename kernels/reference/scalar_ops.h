// Ops that the reference and the fast CPU backend share: those on a few scalars, and those that no kernel makes faster.
// They run on the calling thread.
#pragma once

#include "absl/status/status.h"
#include "kernels/counter_random.h"
#include "kernels/op_kinds.h"

namespace shale {

absl::Status RunOnHost(const MeanFactor& op);
absl::Status RunOnHost(const FlagNonFinite& op);
absl::Status RunOnHost(const CombineTotals& op);
absl::Status RunOnHost(const PrepareUpdate& op);
absl::Status RunOnHost(const RecordNorm& op);
absl::Status RunOnHost(const ZeroRanges& op);

// Computes any stage of Adafactor, on the calling thread (adafactor.cc). The fast CPU backend computes only the moments
// with it, and has kernels for the stages that go through whole parameters.
absl::Status AdafactorOnHost(const Adafactor& op);

// Returns the stream that rounds a bf16 total. REQUIRES: op.rounds()
RoundingStream RoundingOf(const Accumulate& op);

}  // namespace shale
