// What a device reaches in ops that are measured by themselves.
#pragma once

#include "absl/status/statusor.h"
#include "engine/run/runtime/backend.h"

namespace shale {

// Returns the bytes that one rank reads and writes in a second when it copies far more than its caches hold.
absl::StatusOr<double> CopyBytesPerSecond(const Backend& backend);

}  // namespace shale
