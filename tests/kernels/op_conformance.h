// The conformance suite of ops. A test file lists cases, and instantiates the suite over them:
//
//   std::vector<OpCase> NormCases() { ... }
//   INSTANTIATE_TEST_SUITE_P(Norm, OpConformance, ::testing::ValuesIn(NormCases()), CaseName);
//
// Each case then runs on every backend, is compared with the fp64 reference within the case's tolerances, must repeat
// itself to the bit, must agree to the bit within a family of backends, and must change no byte but its outputs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// Largest relative error of rounding to fp32 and to bf16; half of the largest unit in the last place.
inline constexpr double kUnit32 = 0x1p-24;
inline constexpr double kUnit16 = 0x1p-8;

// |got - want| <= absolute + relative * |want|. When the output is stored in bf16 one unit in the last place is added:
// two values that close may round to neighbours.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
  bool ignored = false;  // The file compares this operand in a way of its own.
};

struct OpCase {
  std::string name;  // Letters, digits and underscores.
  TestMemory memory;
  Op op;                                        // Symbolic, in `memory`.
  std::map<std::string, Tolerance> tolerances;  // By operand. One without must agree with the reference exactly.
};

inline std::string CaseName(const ::testing::TestParamInfo<OpCase>& info) { return info.param.name; }
void PrintTo(const OpCase& op_case, std::ostream* out);

class OpConformance : public ::testing::TestWithParam<OpCase> {};

// "f32" or "bf16", for names.
std::string NameOf(DType dtype);

// Runs `op` of `memory` on a backend (one of TestBackends(), by name) and returns the image afterwards. Red zones and
// inputs are not looked at.
std::vector<std::byte> RunOnBackend(const std::string& backend, const TestMemory& memory, const Op& op);
// The same on the reference.
std::vector<std::byte> RunOnReference(const TestMemory& memory, const Op& op);

// That Validate refuses `op`, with a message that contains the op's name and each of `parts`.
void ExpectRefused(const Op& op, const std::vector<std::string>& parts);

}  // namespace shale::testing
