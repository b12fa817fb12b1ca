// RunParts: work that may fail, divided among the threads of a team.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/check.h"
#include "kernels/cpu/team.h"

namespace shale {

// Calls work(part) once for each part in [0, parts), on the threads of the team, even if one fails. Returns the
// error of the first part that has one. Throws std::bad_alloc if a part did, as it would have on this thread.
inline absl::Status RunParts(cpu::Team& team, int64_t parts, absl::FunctionRef<absl::Status(int64_t part)> work) {
  std::vector<absl::Status> results(parts);
  std::atomic<bool> no_memory = false;
  team.RunParts(team.threads(), parts, [&](int64_t part, int) {
    try {
      results[part] = work(part);
    } catch (const std::bad_alloc&) {
      no_memory = true;
    }
  });
  if (no_memory) throw std::bad_alloc();
  for (const absl::Status& result : results) SHALE_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

}  // namespace shale
