// How a rank's memory is filled: initial values of parameters, work of a team's threads that may fail (RunParts), and
// the way of what the host computes into the memory of a device (StagedFill).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/compile/graph/graph.h"
#include "engine/run/runtime/rank_runtime.h"
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

// Sets a rank's memory in rounds. In a round the host takes a place for each piece of memory, writes all bytes of the
// places, with as many threads as it likes, and calls Send.
//
// Memory that the host can access (RankRuntime::HostAccesses) is its own place. For other memory, the places lie in one
// half of the staging memory and Send enqueues copies from there, so that the host fills one half while the other is
// copied:
//
//   host     fill A | fill B | wait for A | fill A | wait for B | fill B | ...
//   stream            copy A              | copy B              | copy A | ...
//
// Used on the rank's launching thread, but for the bytes of places.
class StagedFill {
 public:
  // Places begin at multiples of this in the staging memory.
  static constexpr int64_t kAlignment = 64;

  // Borrows both. If `staging` is part of the rank's pinned memory, nobody else may use it until Finish has returned.
  // If it is not, a half is copied before the other one is filled.
  StagedFill(RankRuntime& runtime, absl::Span<char> staging);
  // Waits for copies after an error, because they read the staging memory.
  ~StagedFill();
  StagedFill(const StagedFill&) = delete;

  // Returns how many bytes the places and the scratch memory of one round may take together, if they are `pieces`.
  int64_t RoundBytes(int64_t pieces) const { return half_bytes_ - pieces * kAlignment; }
  // Returns where to write the `bytes` bytes for `to`, which is in the rank's memory.
  std::byte* Place(std::byte* to, int64_t bytes);
  // Returns memory for whatever the host needs in this round.
  std::byte* Scratch(int64_t bytes);
  // Ends a round. The next one may begin at once.
  absl::Status Send();
  // Waits until all bytes are where they belong. REQUIRES: the last round has ended.
  absl::Status Finish();

 private:
  struct Copy {
    std::byte* to;
    const std::byte* from;
    int64_t bytes;
  };

  RankRuntime& runtime_;
  std::byte* const staging_;
  const int64_t half_bytes_;
  const bool pinned_;
  int half_ = 0;              // The one that is filled.
  int64_t used_bytes_ = 0;    // Of this half.
  std::vector<Copy> copies_;  // Of this round.
  bool copying_ = false;      // Copies may run.
};

// Fills `values` with the initial values of elements [begin, begin + values.size()) of a parameter. The value of an
// element is a function of the seed, the parameter's name and the element's index: it depends neither on the sharding
// nor on the rest of the model. Any thread may call it.
void FillInitialValues(const Parameter& parameter, uint64_t seed, int64_t begin, absl::Span<float> values);

}  // namespace shale
