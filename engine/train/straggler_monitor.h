// StragglerMonitor: finds ranks that are slower than the others, step after step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace shale {

// All ranks of a job take the same time for a step, because they wait for the slowest. So a rank's own time is that of
// the step less what the rank waited, beyond what the one that waited least did. Used by one thread.
class StragglerMonitor {
 public:
  static constexpr double kSlower = 0.2;  // Than the median, as a part of it.
  static constexpr int64_t kSteps = 20;   // In a row.

  // Takes how long each rank waited in a step, in the order of ranks; always of as many ranks. Returns a line about
  // the ranks that have just been slower than the median for kSteps steps, and otherwise "". A rank is named again
  // once it has not been slow for a step.
  std::string Add(double step_seconds, absl::Span<const double> waited_seconds);

 private:
  std::vector<int64_t> slow_steps_;  // By rank, in a row.
};

}  // namespace shale
