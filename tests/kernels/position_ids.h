// Position ids for tests of ops ([Note: position ids] in kernels/ops/attention.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/kernels/test_memory.h"

namespace shale::testing {

// Returns the position ids of `batch` sequences of s tokens, [B, S]. Documents have the given lengths, over and over;
// sequence b begins with length b, and its last document is cut where the sequence ends.
inline Tensor PositionIds(TestMemory& memory, const std::vector<int64_t>& lengths, int64_t batch, int64_t s) {
  std::vector<double> ids(batch * s);
  for (int64_t b = 0; b < batch; ++b) {
    int64_t position = 0;
    size_t document = b;
    for (int64_t i = 0; i < s; ++i, ++position) {
      if (position == lengths[document % lengths.size()]) {
        position = 0;
        ++document;
      }
      ids[b * s + i] = static_cast<double>(position);
    }
  }
  return memory.Values(DType::kInt32, {batch, s}, ids);
}

}  // namespace shale::testing
