// How much is generated at once.
#pragma once

#include <cstdint>
#include <limits>

namespace shale {

// Decides the size of the cache of generation, with the model.
struct GenerationSize {
  int64_t sequences = 1;  // B, sequences that are generated at once.
  int64_t positions = 0;  // Tokens that a sequence may have at a time. 0: the job's sequence_length.
};

// The end of a sequence whose tokens are not limited, because each sees a window of those before it alone.
inline constexpr int64_t kNoLastPosition = std::numeric_limits<int32_t>::max();

}  // namespace shale
