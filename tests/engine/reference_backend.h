// The reference ops as a backend of whole training steps, which links nothing but them.
#pragma once

#include <memory>

#include "engine/runtime/backend.h"

namespace shale::testing {

// On the CPU, ranks in one process.
std::unique_ptr<Backend> CreateReferenceBackend();

}  // namespace shale::testing
