#include "engine/backends/gloo_groups.h"

#include <utility>

#include "sharding/comm/gloo/gloo.h"

namespace shale {

GroupFactory GlooGroups(Store& store, int process, std::string address) {
  return [&store, process, address = std::move(address)](const GroupMembers& group) {
    return CreateGlooGroup(store, {.name = group.name, .process = process, .process_of_rank = group.processes},
                           {.address = address});
  };
}

}  // namespace shale
