// Groups of ranks on CPUs that several processes hold.
#pragma once

#include <functional>
#include <string>

#include "engine/run/runtime/backend.h"
#include "sharding/comm/store.h"

namespace shale {

// Returns a factory of groups over Gloo (sharding/comm/gloo/gloo.h), for process `process`, which the others reach at
// `address`. `report` is that of GlooOptions, but gets a line for the first group only. Borrows the store.
GroupFactory GlooGroups(Store& store, int process, std::string address,
                        std::function<void(const std::string& line)> report);

}  // namespace shale
