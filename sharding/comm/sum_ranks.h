#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/dtype.h"

namespace shale {

// Computes out[i] = (inputs[0][i] + inputs[1][i]) + inputs[2][i] + ..., in the element type: f32, f64 or i64 (which
// wraps). There is at least one input. `out` is one of the inputs or overlaps none.
void SumRanks(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements);

}  // namespace shale
