// Our kernels against the fp64 reference, wherever the test program runs them.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// Runs `op` on every backend of the family "cuda" (there must be one) and returns the image afterwards, of which all
// have the same bits. The first error otherwise.
absl::Status RunOnCuda(const TestMemory& memory, const Op& op, std::vector<std::byte>& image);

// |got - want| <= tolerance |want| + absolute, one bf16 unit in the last place more where that is stored.
void ExpectNear(const TestMemory& memory, const Tensor& t, std::vector<std::byte>& got, std::vector<std::byte>& want,
                const Tolerance& tolerance);

// That the kernel agrees with the reference, has the same bits in each of `runs` (on the host, orders of threads), and
// changes only its outputs.
void ExpectMatchesReference(const TestMemory& memory, const Op& op, const Tolerance& tolerance, int runs);

}  // namespace shale::testing
