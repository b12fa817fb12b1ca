// Requests to end calls that take long.
#pragma once

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/c/handles.h"
#include "engine/c/shale.h"

namespace shale::c {

// Returns what shale_stop_request sets, which lives as long as the result; null for 0, the stop of nobody.
absl::StatusOr<std::shared_ptr<const std::atomic<bool>>> TakeStop(shale_stop stop);

}  // namespace shale::c
