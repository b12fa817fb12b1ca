// The handles of jobs.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/c/handles.h"
#include "engine/config/job.h"

namespace shale::c {

Handles<const Job>& Jobs();

// Returns overrides of the caller as strings.
absl::StatusOr<std::vector<std::string>> TakeOverrides(const char* const* overrides, size_t count);

}  // namespace shale::c
