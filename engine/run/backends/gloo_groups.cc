#include "engine/run/backends/gloo_groups.h"

#include <memory>
#include <mutex>
#include <utility>

#include "sharding/comm/gloo/gloo.h"

namespace shale {

GroupFactory GlooGroups(Store& store, int process, std::string address,
                        std::function<void(const std::string& line)> report) {
  GlooOptions options = {.address = std::move(address)};
  options.report = [report = std::move(report), said = std::make_shared<std::once_flag>()](const std::string& line) {
    std::call_once(*said, report, line);
  };
  return [&store, process, options = std::move(options)](const GroupMembers& group) {
    return CreateGlooGroup(store, {.name = group.name, .process = process, .process_of_rank = group.processes},
                           options);
  };
}

}  // namespace shale
