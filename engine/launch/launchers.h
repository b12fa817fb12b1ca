// The launchers that FindProcessPlace knows.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace shale {

// What starts processes, and the variables by which it tells them who they are. An empty name: it does not say.
struct Launcher {
  absl::string_view name;
  absl::string_view marker;  // Is set in every process that it starts, and in no other.
  absl::string_view process, processes, local_process, local_processes, address, port;
  std::vector<absl::string_view> launch;  // Together these distinguish launches.
  // Starts its processes below another launcher, if there is one, so that the other may number something else.
  bool inner = false;
};

// Returns the launchers in the order of FindProcessPlace.
const std::vector<Launcher>& Launchers();

}  // namespace shale
