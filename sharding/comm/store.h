// Store: lets processes find each other before they are connected.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shale {

// Values by key, shared by all processes of a job. Each key is written once. Thread-safe.
class Store {
 public:
  virtual ~Store() = default;
  virtual absl::Status Put(const std::string& key, const std::string& value) = 0;
  // Waits until some process has put the value. Returns DeadlineExceeded if none has done so in time.
  virtual absl::StatusOr<std::string> Get(const std::string& key, double timeout_seconds) = 0;
};

}  // namespace shale
