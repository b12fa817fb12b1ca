// UserMetrics collects the values that a program adds to the report of a step (Trainer::AddMetric).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/api/events.h"

namespace shale {

// Used by one thread at a time.
class UserMetrics {
 public:
  static constexpr size_t kMost = 64;          // Names in one report.
  static constexpr size_t kLongestName = 100;  // Bytes.

  // See Trainer::AddMetric.
  absl::Status Add(absl::string_view name, double value);
  // Returns the values since the last call, by name.
  std::vector<UserMetric> Take();

 private:
  std::map<std::string, double, std::less<>> values_;
};

}  // namespace shale
