// What a job runs on, as runtime of its spec says.
#pragma once

#include <memory>

#include "engine/config/job.h"
#include "engine/runtime/backend.h"

namespace shale {

std::unique_ptr<Backend> CreateBackend(const Job& job);

}  // namespace shale
