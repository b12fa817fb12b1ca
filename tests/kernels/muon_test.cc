// Tests the ops of Muon on each backend. tests/engine/compile/step/orthogonal_update_test.cc compares what the step
// compiler makes of them with torch.optim.Muon.
#include "kernels/ops/muon.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/step_scalars.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

MuonDirection DirectionOf(TestMemory& m, DType momentum, DType direction, int64_t n, bool skips) {
  MuonDirection op{
      .update_5 = m.Values(DType::kFloat32, {kUpdateSize}, {0.125, 0.5, 0.25, 0.75, skips ? 1.0 : 0.0}),
      .gradient_P = m.Random(DType::kFloat32, {n}),
      .momentum_P = m.Random(momentum, {n}),
      .direction_P = m.Output(direction, {n}),
      .step_5 = m.Output(DType::kFloat32, {kUpdateSize}),
      .shard_begin = 40,
      .seed = 5,
      .group = 3,
  };
  if (op.rounds()) op.number_1 = m.Values(DType::kInt64, {1}, {7});
  return op;
}

std::vector<OpCase> MuonCases() {
  std::vector<OpCase> cases;
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      for (const int64_t n : {0, 1, 7, 16, 257, 16389}) {
        const std::string name = NameOf(from) + "_" + NameOf(to) + "_" + std::to_string(n);
        for (const bool nesterov : {false, true}) {
          OpCase c{.name = "Direction_" + name + (nesterov ? "_nesterov" : "")};
          MuonDirection op = DirectionOf(c.memory, from, to, n, /*skips=*/false);
          op.nesterov = nesterov;
          c.op = op;
          // Of the momentum the scaled gradient, the difference and the sum are rounded. The direction adds another
          // difference and sum.
          c.tolerances["momentum"] = {.absolute = 3 * kUnit32};
          c.tolerances["direction"] = {.absolute = 5 * kUnit32};
          cases.push_back(std::move(c));
        }
        OpCase skipped{.name = "Skipped_" + name};
        skipped.op = DirectionOf(skipped.memory, from, to, n, /*skips=*/true);
        cases.push_back(std::move(skipped));
      }
    }
    // One multiplication in fp32 by the same factor, rounded once more to bf16: the same bits everywhere. The sum of
    // the last case is so small that epsilon divides. OpConformance also runs this op and the next one in place.
    for (const int64_t n : {0, 1, 7, 16, 257, 16389}) {
      for (const double squares : {3.7, 1e-30}) {
        OpCase c{.name = "Divide_" + NameOf(from) + "_" + std::to_string(n) + (squares < 1 ? "_tiny" : "_norm")};
        c.op = DivideByNorm{.x_N = c.memory.Random(from, {n}),
                            .squares_1 = c.memory.Values(DType::kFloat64, {1}, {squares}),
                            .out_N = c.memory.Output(from, {n})};
        cases.push_back(std::move(c));
      }
    }
    for (const int64_t m : {1, 2, 3, 7, 8, 9, 17, 65, 257}) {
      OpCase c{.name = "Polynomial_" + NameOf(from) + "_" + std::to_string(m)};
      c.op = MatrixPolynomial{.x_MM = c.memory.Random(from, {m, m}),
                              .y_MM = c.memory.Random(from, {m, m}),
                              .out_MM = c.memory.Output(from, {m, m}),
                              .a = 3.4445f,
                              .b = -4.775f,
                              .c = 2.0315f};
      // Two sums of magnitudes below |a| + |b| + |c| are rounded.
      c.tolerances["out"] = {.absolute = 2 * 10.3 * kUnit32};
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Muon, OpConformance, ::testing::ValuesIn(MuonCases()), CaseName);

// A matrix as large as fp32 holds has a norm that only fp64 holds, and one of zeros stays what it is.
TEST(MuonOps, DivideHugeMatricesAndZeros) {
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    for (const double value : {3e38, 0.0}) {
      TestMemory m;
      const std::vector<double> values(16, value);
      const DivideByNorm op{.x_N = m.Values(DType::kFloat32, {16}, values),
                            .squares_1 = m.Values(DType::kFloat64, {1}, {16 * value * value}),
                            .out_N = m.Output(DType::kFloat32, {16})};
      std::vector<std::byte> image = RunOnBackend(backend.name, m, op);
      // The reciprocal of 1.2e39 is a subnormal fp32 number of 20 bits.
      EXPECT_NEAR(m.Bind(op.out_N, image.data()).as<const float>()[15], value == 0 ? 0 : 0.25, 0.25 * 0x1p-18);
    }
  }
}

}  // namespace
}  // namespace shale::testing
