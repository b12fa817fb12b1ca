// RunHostWork: runs work that a stream was given for the host.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale {

// Calls `work` and returns its result. An exception that leaves it becomes an Internal error that names `stream`.
absl::Status RunHostWork(const std::function<absl::Status()>& work, absl::string_view stream);

}  // namespace shale
