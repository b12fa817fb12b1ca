// The conformance suite of ops. A test file lists cases, and instantiates the suite over them:
//
//   std::vector<OpCase> NormCases() { ... }
//   INSTANTIATE_TEST_SUITE_P(Norm, OpConformance, ::testing::ValuesIn(NormCases()), CaseName);
//
// Each case then runs on every backend. The results must agree with the fp64 reference within the case's tolerances,
// and must be the same bits on all backends of a family and with an output in the place of an input. On a backend
// without relatives the op runs twice, to the same bits; with a sanitizer once. No byte may change but those of the
// outputs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/op.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// The largest relative error of rounding to fp32, to bf16 and to f16, which is half of the largest unit in the last
// place.
inline constexpr double kUnit32 = 0x1p-24;
inline constexpr double kUnit16 = 0x1p-8;
inline constexpr double kUnitHalf = 0x1p-11;
inline constexpr double kLeastHalf = 0x1p-24;  // The distance of subnormal halves.

// Returns the largest relative error of rounding to a dtype.
inline double UnitOf(DType dtype) {
  return dtype == DType::kBFloat16 ? kUnit16 : dtype == DType::kFloat16 ? kUnitHalf : kUnit32;
}

// Demands |got - want| <= absolute + relative * |want|. If this is not 0 and the output is stored in bf16 or f16, one
// unit in the last place is added, because two values that close may round to neighbors.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
  bool ignored = false;  // The test file compares this operand in its own way.
};

struct OpCase {
  std::string name;  // Letters, digits and underscores.
  TestMemory memory;
  Op op;                                        // Symbolic, in `memory`.
  std::map<std::string, Tolerance> tolerances;  // By operand. Operands without one must equal the reference.
};

inline std::string CaseName(const ::testing::TestParamInfo<OpCase>& info) { return info.param.name; }
void PrintTo(const OpCase& op_case, std::ostream* out);

class OpConformance : public ::testing::TestWithParam<OpCase> {};

// Returns "f32", "bf16" or "f16", for names.
std::string NameOf(DType dtype);

// Runs `op` of `memory` on a backend (one of TestBackends(), by name) and returns the image afterwards. Does not check
// the red zones and inputs in it.
std::vector<std::byte> RunOnBackend(const std::string& backend, const TestMemory& memory, const Op& op);
// Does the same on the reference.
std::vector<std::byte> RunOnReference(const TestMemory& memory, const Op& op);

// Expects that Validate refuses `op`, with a message that contains the op's name and each of `parts`.
void ExpectRefused(const Op& op, const std::vector<std::string>& parts);

}  // namespace shale::testing
