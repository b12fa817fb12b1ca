#pragma once

#include "tests/kernels/cuda/cudnn/attention_ops.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// Makes a packed attention op of random numbers in `memory`. Its lse is that of q and k.
AttentionBackward RandomAttention(TestMemory& memory, const AttentionShape& shape);

}  // namespace shale::testing
