// The launchers that FindProcessPlace knows.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace shale {

// A program that starts processes, and the names of the environment variables by which it tells each its place. A name
// is empty if the launcher has no such variable.
struct Launcher {
  absl::string_view name;
  absl::string_view marker;  // Is set in every process that it starts, and in no other.
  absl::string_view process, processes, local_process, local_processes, address, port;
  std::vector<absl::string_view> launch;  // Their values together differ from launch to launch.
  // Whether another launcher may have started this one. The variables of that one then do not describe the processes,
  // and are ignored.
  bool inner = false;
};

// Returns the launchers in the order of FindProcessPlace.
const std::vector<Launcher>& Launchers();

}  // namespace shale
