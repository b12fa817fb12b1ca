// Groups of ranks on CPUs that several processes hold.
#pragma once

#include <string>

#include "engine/runtime/backend.h"
#include "sharding/comm/store.h"

namespace shale {

// Returns a factory of groups over Gloo (sharding/comm/gloo/gloo.h), for process `process`, which the others reach at
// `address`. Borrows the store.
GroupFactory GlooGroups(Store& store, int process, std::string address);

}  // namespace shale
