// Stream: the settings and findings of launches on the host, passed where a launch on a GPU takes its stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace shale::cuda_on_host {

// A place in a source file.
struct Site {
  const char* file = "";
  unsigned line = 0;
  bool operator==(const Site& other) const {
    return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
  }
};

// Which threads of a block run next.
enum class ThreadOrder : uint8_t {
  kTurns,       // All threads take turns, each up to its next barrier, shuffle or vote.
  kWarpsAhead,  // One warp runs as far as it can, to a __syncthreads or to its end, then the next one.
};

class BlockTurns;

// Bytes of an array in global memory, also where a cache would serve them.
struct ArrayBytes {
  int64_t read = 0, written = 0;
};

// What launches did so far. Only accesses through Global<T> and Shared<T> count, and products of matrices, not other
// arithmetic.
struct Counts {
  int64_t read_bytes = 0, written_bytes = 0;  // As in ArrayBytes, of all arrays.
  int64_t shared_accessed_bytes = 0;
  int64_t accesses = 0;           // Loads and stores of single threads, each of up to 16 bytes.
  int64_t block_barriers = 0;     // Each counts once for a block.
  int64_t warp_operations = 0;    // Shuffles, votes and warp barriers. Each counts once for a warp.
  int64_t multiply_adds = 0;      // Of MultiplyAdd: those of single numbers.
  int64_t blocks = 0, warps = 0;  // That ran.
  size_t block_shared_bytes = 0;  // The most shared memory of a block.
  // Those of each global array, by the name that its kernel gives it, if the stream counts arrays.
  std::map<std::string, ArrayBytes> arrays;
};

struct Stream {
  // Seed of the order of blocks, and of the threads between two barriers.
  uint64_t seed = 1;
  ThreadOrder order = ThreadOrder::kTurns;
  // If not null, launches wait for their turn before each block. Borrowed.
  BlockTurns* turns = nullptr;
  // Mutation testing: barriers and waits for copies at this place are passed without waiting.
  std::optional<Site> without_barrier;
  // If not 0, a launch runs only this many blocks, the last ones.
  uint64_t last_blocks = 0;
  // Shared memory of an SM, which is a little more than that of a block, and less on some GPUs than on an H200.
  size_t sm_shared_bytes = size_t{228} << 10;
  bool counts_arrays = false;
  Counts counts;
  // Every __syncthreads, __syncwarp and WaitForCopies that a launch came to, in the order of their first use.
  std::vector<Site> barriers;
  // Takes a launched kernel, to run it later in FIFO order, and returns at once. If empty, a launch runs its kernel to
  // the end on the calling thread.
  std::function<absl::Status(std::function<absl::Status()> kernel)> submit;
};

// The stream whose thread this is, or null. A kernel that runs on this thread uses the settings of this stream, even if
// a graph captured it on another one.
inline thread_local Stream* stream_of_this_thread = nullptr;

}  // namespace shale::cuda_on_host
