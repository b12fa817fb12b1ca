// Budgets: how much a job may plan for one rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "absl/status/statusor.h"

namespace shale {

// A budget that everything fits.
inline constexpr int64_t kNoBudget = std::numeric_limits<int64_t>::max();

struct Budget {
  int64_t bytes = kNoBudget;       // Of one rank's arena.
  std::string origin;              // Where it comes from, if not from the job: "80 % of this machine's memory".
  int64_t host_bytes = kNoBudget;  // Of host memory, for what one rank offloads.
  std::string host_origin;

  bool Holds(int64_t arena_bytes, int64_t offload_bytes) const {
    return arena_bytes <= bytes && offload_bytes <= host_bytes;
  }
  // How many bytes more would hold it, of both together; rounded.
  double Missing(int64_t arena_bytes, int64_t offload_bytes) const {
    return std::max(0.0, static_cast<double>(arena_bytes) - static_cast<double>(bytes)) +
           std::max(0.0, static_cast<double>(offload_bytes) - static_cast<double>(host_bytes));
  }
};

// The budget of each of so many ranks where the job names none. An error: so many cannot run here.
using DefaultBudget = std::function<absl::StatusOr<Budget>(int64_t ranks)>;

}  // namespace shale
