// A backend for whole training steps that runs the reference ops and links no other ops.
#pragma once

#include <memory>

#include "engine/run/runtime/backend.h"

namespace shale::testing {

// Runs on the CPU, with all ranks in one process.
std::unique_ptr<Backend> CreateReferenceBackend();

}  // namespace shale::testing
