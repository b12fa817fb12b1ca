// Our kernels against the fp64 reference, under the checks of the host runner.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/kernels/cuda/host/run_kernel.h"

namespace shale::testing {
namespace {

struct NormShape {
  int64_t rows, width;
  int64_t heads = 0;  // Not 0: [rows, heads, width].
  bool residual = false, in_place = false;
  int64_t gap = 0;  // Elements between the rows of x and y.
};

RmsNormForward NormOp(TestMemory& memory, DType act, const NormShape& s) {
  const int64_t row = s.width * std::max<int64_t>(1, s.heads);
  const auto rows = [&](bool output, int64_t gap) {
    Tensor t = output ? memory.Output(act, {s.rows, row + gap}) : memory.Random(act, {s.rows, row + gap});
    t = t.Slice(1, gap / 2, row);
    return s.heads > 0 ? t.SplitLast(s.heads, s.width) : t;
  };
  RmsNormForward op;
  op.x = rows(false, s.gap);
  if (s.residual) {
    op.residual = rows(false, 0);
    op.sum = rows(true, 0);
  }
  op.weight_C = memory.Random(act, {s.width}, 0.5, 1.5);
  op.y = s.in_place ? op.x : rows(true, s.gap);
  op.rstd_R = memory.Output(DType::kFloat32, {s.rows * std::max<int64_t>(1, s.heads)});
  op.epsilon = 1e-3f;
  return op;
}

void ExpectNormRight(DType act, const NormShape& s, int seeds = 2) {
  SCOPED_TRACE(NameOf(act) + " " + std::to_string(s.rows) + " x " + std::to_string(s.width));
  TestMemory memory;
  const RmsNormForward op = NormOp(memory, act, s);
  // A sum of C squares in fp32 is within C units of itself; root, quotient and products add a few.
  const Tolerance tolerance = {.relative = (static_cast<double>(s.width) + 8) * kUnit32};
  ExpectMatchesReference(memory, op, tolerance, seeds);
}

constexpr DType kActs[] = {DType::kFloat32, DType::kBFloat16};

TEST(CudaRmsNorm, MatchesTheReferenceAtAnyWidth) {
  for (const DType act : kActs) {
    for (const int64_t width : {1, 3, 64, 127, 512, 1000, 1024, 1025, 2056}) {
      for (const int64_t rows : {1, 3}) ExpectNormRight(act, {.rows = rows, .width = width, .residual = rows == 3});
    }
    for (const int64_t width : {3, 64}) ExpectNormRight(act, {.rows = 257, .width = width, .residual = width == 64}, 1);
    ExpectNormRight(act, {.rows = 257, .width = 1000}, 1);
  }
}

TEST(CudaRmsNorm, TakesHeadsStridesAndItsOwnInput) {
  for (const DType act : kActs) {
    for (const int64_t gap : {0, 6, 16}) {
      for (const bool residual : {false, true}) {
        ExpectNormRight(act, {.rows = 5, .width = 24, .residual = residual, .in_place = true, .gap = gap});
        ExpectNormRight(act, {.rows = 5, .width = 27, .heads = 3, .residual = residual, .gap = gap});
        ExpectNormRight(act, {.rows = 3, .width = 64, .heads = 2, .residual = residual, .in_place = true, .gap = gap});
        ExpectNormRight(act, {.rows = 2, .width = 1100, .residual = residual, .in_place = true, .gap = gap});
      }
    }
    // Rows begin at 16 bytes and do not end there: packs and what remains.
    ExpectNormRight(act, {.rows = 4, .width = 61, .gap = 3});
    ExpectNormRight(act, {.rows = 2, .width = 1101, .gap = 16 * 70 - 1101});
  }
}

TEST(CudaRmsNorm, NeedsEachOfItsBarriers) {
  for (const DType act : kActs) {
    TestMemory memory;
    const RmsNormForward op = NormOp(memory, act, {.rows = 2, .width = 2048, .residual = true});
    ExpectNeedsEachOfItsBarriers(memory, op, 1);
  }
}

// exp, the quotient and a few products cost a sigmoid in fp32 some units each.
constexpr double kUnits = 16 * kUnit32;

TEST(CudaSwiGlu, MatchesTheReferenceAtAnyWidthForwardAndBackward) {
  for (const DType act : kActs) {
    for (const int64_t width : {1, 3, 64, 127, 512, 1000}) {
      for (const int64_t rows : {1, 3, 257}) {
        if (rows == 257 && width != 64 && width != 127) continue;
        SCOPED_TRACE(NameOf(act) + " " + std::to_string(rows) + " x " + std::to_string(width));
        TestMemory memory;
        const Tensor gate_up = memory.Random(act, {rows, 2 * width}, -4, 4);
        const Tensor d_y = memory.Random(act, {rows, width});
        ExpectMatchesReference(memory, SwiGluForward{.gate_up_T2F = gate_up, .y_TF = memory.Output(act, {rows, width})},
                               {.relative = kUnits}, 2);
        // silu' has a zero at -1.278, so its error is not relative; |d_y up| < 4.
        const Tolerance backward = {.absolute = 4 * kUnits, .relative = kUnits};
        ExpectMatchesReference(memory,
                               SwiGluBackward{.gate_up_T2F = gate_up, .d_y_TF = d_y,
                                              .d_gate_up_T2F = memory.Output(act, {rows, 2 * width})},
                               backward, 2);
        ExpectMatchesReference(
            memory, SwiGluBackward{.gate_up_T2F = gate_up, .d_y_TF = d_y, .d_gate_up_T2F = gate_up}, backward, 2);
      }
    }
  }
}

TEST(CudaSwiGlu, StaysFiniteWhereExpOverflows) {
  for (const DType act : kActs) {
    TestMemory memory;
    const std::vector<double> gates = {0, -0.0, 88, -88, 105, -105, 1e10, -1e10, 3e38, -3e38};
    std::vector<double> row = gates;
    row.resize(20, 1.0);
    const Tensor gate_up = memory.Values(act, {1, 20}, row);
    const Tensor d_y = memory.Values(act, {1, 10}, std::vector<double>(10, 1));
    const Tolerance tolerance = {.absolute = 4 * kUnits, .relative = kUnits};
    ExpectMatchesReference(memory, SwiGluForward{.gate_up_T2F = gate_up, .y_TF = memory.Output(act, {1, 10})},
                           tolerance, 1);
    ExpectMatchesReference(memory,
                           SwiGluBackward{.gate_up_T2F = gate_up, .d_y_TF = d_y,
                                          .d_gate_up_T2F = memory.Output(act, {1, 20})},
                           tolerance, 1);
  }
}

}  // namespace
}  // namespace shale::testing
