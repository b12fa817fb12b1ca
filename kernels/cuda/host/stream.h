// What a launch on the host is told, and tells: passed where the device has its stream.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace shale::cuda_on_host {

// A place in a source file.
struct Site {
  const char* file = "";
  unsigned line = 0;
  bool operator==(const Site& other) const { return line == other.line && std::strcmp(file, other.file) == 0; }
};

struct Stream {
  // Of the order of blocks, and of the threads between two barriers.
  uint64_t seed = 1;
  // A mutation: the barriers of this place are passed without waiting.
  std::optional<Site> without_barrier;
  // Not 0: a launch runs only so many blocks, the last ones.
  uint64_t last_blocks = 0;
  // Every place where a launch came to a __syncthreads or __syncwarp, in the order of their first use.
  std::vector<Site> barriers;
  // Takes the kernels that are launched here, to run each at its turn, and returns at once. Empty: a launch runs its
  // kernel to the end.
  std::function<absl::Status(std::function<absl::Status()> kernel)> submit;
};

// Whose thread this is; null: no stream's. A kernel runs for it, which a graph may have brought from another stream.
inline thread_local Stream* stream_of_this_thread = nullptr;

}  // namespace shale::cuda_on_host
