// Compares our kernels with the fp64 reference, wherever the test program runs them.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// Runs `op` on every backend of the family "cuda" and expects the same bits from all. Stores the memory image
// afterwards in `image`. Returns the first error. The test fails if there is no such backend.
absl::Status RunOnCuda(const TestMemory& memory, const Op& op, std::vector<std::byte>& image);

// Expects |got - want| <= tolerance.relative |want| + tolerance.absolute for each element of `t`, with one bf16 unit in
// the last place more where `t` is bf16.
void ExpectNear(const TestMemory& memory, const Tensor& t, std::vector<std::byte>& got, std::vector<std::byte>& want,
                const Tolerance& tolerance);

// Expects that the kernel agrees with the reference, has the same bits in each of `runs` runs (on the host, in other
// orders of threads), and changes only its outputs.
void ExpectMatchesReference(const TestMemory& memory, const Op& op, const Tolerance& tolerance, int runs);

}  // namespace shale::testing
