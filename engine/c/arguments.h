// What several functions of the C interface take: a checkpoint, how tokens are drawn, requests to end calls that take
// long.
#pragma once

#include <atomic>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/checkpoint.h"
#include "engine/api/sampler.h"
#include "engine/c/handles.h"
#include "engine/c/shale.h"

namespace shale::c {

// Calls `use` with the checkpoint at `folder`, or with the newest intact one in it: if `use` returns DataLoss, with the
// one before. Returns NotFound if there is none, and otherwise what `use` returned.
absl::Status UseCheckpoint(const char* folder, absl::FunctionRef<absl::Status(const CheckpointReader&)> use);

// Returns the options; the defaults for null. Returns InvalidArgument for a struct or values that are wrong.
absl::StatusOr<SamplingOptions> TakeSampling(const shale_sampling* sampling);

// Returns what shale_stop_request sets, which lives as long as the result; null for 0, the stop of nobody.
absl::StatusOr<std::shared_ptr<const std::atomic<bool>>> TakeStop(shale_stop stop);

}  // namespace shale::c
