// Jobs with runtime.device CPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/runtime/backend.h"

namespace shale {

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuJobBackend(const Job& job);

}  // namespace shale
