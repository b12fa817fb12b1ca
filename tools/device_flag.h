// The flag --device of the tools that use the model of a run.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/api/backend.h"

namespace shale {

inline constexpr char kDeviceHelp[] = "What to run on; by default what the run was trained on.";

// Returns a factory of backends for the device that --device names, or for that of the job if `device` is empty.
// Returns InvalidArgument for another value.
absl::StatusOr<BackendFactory> BackendsOn(const std::string& device);

}  // namespace shale
