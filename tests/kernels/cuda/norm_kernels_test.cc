// Tests the norm kernels with each size of team, and where a block owns many rows.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"
#include "tests/kernels/cuda/run_cuda.h"

namespace shale::testing {
namespace {

using Tolerances = std::map<std::string, Tolerance>;

// `gap` elements lie between rows, half of them before the first: 16 keep rows at multiples of 16 bytes, 6 do not.
struct NormShape {
  int64_t rows, width, gap = 0;
};

Tensor RowTensor(TestMemory& memory, DType act, const NormShape& s, bool output) {
  const Tensor t =
      output ? memory.Output(act, {s.rows, s.width + s.gap}) : memory.Random(act, {s.rows, s.width + s.gap});
  return t.Slice(1, s.gap / 2, s.width);
}

template <class OpType>
OpType Forward(TestMemory& memory, DType act, const NormShape& s) {
  const NormShape dense = {.rows = s.rows, .width = s.width};
  OpType op;
  op.x = RowTensor(memory, act, s, false);
  op.residual = RowTensor(memory, act, dense, false);
  op.sum = RowTensor(memory, act, dense, true);
  op.weight_C = memory.Random(act, {s.width}, 0.5, 1.5);
  op.y = op.x;
  op.rstd_R = memory.Output(DType::kFloat32, {s.rows});
  op.epsilon = 1e-3f;
  if constexpr (requires { op.bias_C; }) {
    op.bias_C = memory.Random(act, {s.width});
    op.mean_R = memory.Output(DType::kFloat32, {s.rows});
  }
  return op;
}

template <class OpType>
OpType Backward(TestMemory& memory, DType act, const NormShape& s) {
  OpType op;
  op.d_y = RowTensor(memory, act, s, false);
  op.x = RowTensor(memory, act, s, false);
  op.weight_C = memory.Random(act, {s.width}, 0.5, 1.5);
  op.rstd_R = memory.Random(DType::kFloat32, {s.rows}, 1, 3);
  op.d_residual = RowTensor(memory, act, s, false);
  op.d_x = op.d_y;
  op.d_weight_C = memory.Output(DType::kFloat32, {s.width});
  if constexpr (requires { op.d_bias_C; }) {
    op.mean_R = memory.Random(DType::kFloat32, {s.rows});
    op.d_bias_C = memory.Random(DType::kFloat32, {s.width});
  }
  return op;
}

// A sum of n terms errs by at most n units of the sum of their magnitudes. The error of an element comes from the
// statistics of its row.
Tolerances ForwardTolerances(const NormShape& s) {
  const double units = (static_cast<double>(s.width) + 8) * kUnit32;
  const double bound = s.width < 7 ? 32 : 3;  // The largest rstd.
  return {{"sum", {}},
          {"mean", {.absolute = 2 * units}},
          {"rstd", {.relative = units * (1 + 4 * bound)}},
          {"y", {.absolute = 3 * bound * units, .relative = units * (2 + 8 * bound)}}};
}

// |d_y weight| < 1.5 and |n| < 6. The sum of a column goes through the rows of a chunk, its teams, and the chunks, 32
// at a time: fewer than 100 additions.
Tolerances BackwardTolerances(const NormShape& s) {
  const double mean_error = (static_cast<double>(s.width) + 4) * kUnit32 * 9;
  const Tolerance columns = {.absolute = 100 * kUnit32 * 6 * static_cast<double>(s.rows)};
  return {{"d_x", {.absolute = 18 * mean_error + 32 * kUnit32}}, {"d_weight", columns}, {"d_bias", columns}};
}

template <class OpType>
void ExpectRight(const TestMemory& memory, const OpType& op, const Tolerances& tolerances) {
  std::vector<std::byte> want = RunOnReference(memory, op), got;
  const absl::Status status = RunOnCuda(memory, op, got);
  ASSERT_TRUE(status.ok()) << status;
  VisitOperands(Op(op), [&](absl::string_view name_view, const Tensor& t, Access access) {
    if (access == Access::kRead || !t.present()) return;
    const std::string name(name_view.data(), name_view.size());
    SCOPED_TRACE(name);
    ExpectNear(memory, t, got, want, tolerances.at(name));
  });
}

// Packs of 16 bytes in a row. There is a team of each size; the last but one is full, and the last has one pack more
// than any team holds.
constexpr int64_t kPacks[] = {1, 15, 33, 65, 129, 257, 513, 1024, 1025};

int64_t PackOf(DType act) { return 16 / SizeOf(act); }

TEST(CudaNorms, MatchTheReferenceWithTeamsOfAnySize) {
  for (const DType act : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t packs : kPacks) {
      for (const bool whole : {false, true}) {
        const NormShape s = {.rows = 3, .width = packs * PackOf(act) - (whole ? 0 : 1), .gap = 16};
        SCOPED_TRACE(NameOf(act) + " " + std::to_string(s.width));
        TestMemory memory;
        ExpectRight(memory, Forward<RmsNormForward>(memory, act, s), ForwardTolerances(s));
        ExpectRight(memory, Forward<LayerNormForward>(memory, act, s), ForwardTolerances(s));
        ExpectRight(memory, Backward<RmsNormBackward>(memory, act, s), BackwardTolerances(s));
        ExpectRight(memory, Backward<LayerNormBackward>(memory, act, s), BackwardTolerances(s));
      }
    }
  }
}

// A block works through its rows with two arrays in turn, and no team may get a row ahead of that.
TEST(CudaNorms, MatchTheReferenceWhereABlockOwnsManyRows) {
  constexpr DType kAct = DType::kFloat32;
  const auto backward = [&](auto op_type, const NormShape& s) {
    SCOPED_TRACE(s.width);
    TestMemory memory;
    ExpectRight(memory, Backward<decltype(op_type)>(memory, kAct, s), BackwardTolerances(s));
  };
  // Rows are the blocks on an H200, times the teams of a block, times two, and one more: one team has a third row.
  backward(RmsNormBackward(), {.rows = 132 * 2 * 24 * 2 + 1, .width = 5});
  backward(RmsNormBackward(), {.rows = 132 * 2 * 4 * 2 + 1, .width = 257});
  backward(RmsNormBackward(), {.rows = 132 * 2 * 2 * 2 + 1, .width = 513});
  backward(LayerNormBackward(), {.rows = 132 * 2 * 2 + 1, .width = 1025});

  // Forward, one team has a second row.
  const auto forward = [&](auto op_type, const NormShape& s) {
    SCOPED_TRACE(s.width);
    TestMemory memory;
    ExpectRight(memory, Forward<decltype(op_type)>(memory, kAct, s), ForwardTolerances(s));
  };
  forward(RmsNormForward(), {.rows = 132 * 3 * 24 + 1, .width = 5});
  forward(RmsNormForward(), {.rows = 132 * 4 * 2 + 1, .width = 513});
  forward(LayerNormForward(), {.rows = 132 * 2 + 1, .width = 2049});
}

// Returns the sum of squares as a team of so many threads makes it whose members own `packs` packs each.
float SquaresInOrder(const std::vector<float>& x, int pack, int threads, int packs) {
  std::vector<float> of_thread(threads);
  for (int t = 0; t < threads; ++t) {
    for (int p = 0; p < packs; ++p) {
      for (size_t c = (p * threads + t) * pack, end = c + pack; c < end && c < x.size(); ++c) {
        of_thread[t] = std::fma(x[c], x[c], of_thread[t]);
      }
    }
  }
  const int lanes = std::min(threads, 32);
  float total = 0;
  for (int warp = 0; warp < threads; warp += lanes) {
    for (int half = lanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) of_thread[warp + lane] += of_thread[warp + lane + half];
    }
    total += of_thread[warp];
  }
  return total;
}

// The order of sums over a row outlives the teams that first had it, so that models keep their bits: above 64 packs, it
// is that of teams of twice as many threads with two packs each.
TEST(CudaNorms, SumRowsInOneOrder) {
  struct Team {
    int64_t width;
    int threads, packs;
  };
  for (const Team& team :
       {Team{60, 16, 1}, {250, 32, 2}, {500, 64, 2}, {1000, 128, 2}, {2001, 256, 2}, {4000, 512, 2}}) {
    SCOPED_TRACE(team.width);
    std::vector<double> values(team.width);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>((i * 104729 + 17) % 1013) / 1013 - 0.3;
    TestMemory memory;
    const RmsNormForward op = {.x = memory.Values(DType::kFloat32, {1, team.width}, values),
                               .weight_C = memory.Values(DType::kFloat32, {team.width}, values),
                               .y = memory.Output(DType::kFloat32, {1, team.width}),
                               .rstd_R = memory.Output(DType::kFloat32, {1})};
    std::vector<std::byte> image;
    const absl::Status status = RunOnCuda(memory, op, image);
    ASSERT_TRUE(status.ok()) << status;
    const float squares = SquaresInOrder({values.begin(), values.end()}, 4, team.threads, team.packs);
    const float want = 1.0f / std::sqrt(squares / static_cast<float>(team.width) + op.epsilon);
    EXPECT_EQ(ElementOf(memory.Bind(op.rstd_R, image.data()), 0), want);
  }
}

// Expects the same output bits at two addresses, only one of which allows accesses of 16 bytes.
template <class Make>
void ExpectSameBitsAtAnyAddress(const Make& make) {
  std::vector<std::vector<double>> outputs;
  for (const int64_t gap : {16, 6}) {
    TestMemory memory;
    const auto op = make(memory, gap);
    std::vector<std::byte> image;
    const absl::Status status = RunOnCuda(memory, op, image);
    ASSERT_TRUE(status.ok()) << status;
    std::vector<double>& values = outputs.emplace_back();
    VisitOperands(Op(op), [&](absl::string_view, const Tensor& t, Access access) {
      if (access == Access::kRead || !t.present()) return;
      const Tensor bound = memory.Bind(t, image.data());
      for (int64_t i = 0; i < t.elements(); ++i) values.push_back(ElementOf(bound, i));
    });
  }
  EXPECT_TRUE(outputs[0] == outputs[1]);
}

// Returns rows between gaps. Their values do not depend on the gap.
Tensor Filled(TestMemory& memory, DType act, int64_t rows, int64_t width, int64_t gap) {
  std::vector<double> values((width + gap) * rows);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      values[r * (width + gap) + gap / 2 + c] = static_cast<double>((r * 7919 + c * 104729) % 1013) / 1013 - 0.3;
    }
  }
  return memory.Values(act, {rows, width + gap}, values).Slice(1, gap / 2, width);
}

TEST(CudaNorms, HaveTheSameBitsAtAnyAddress) {
  constexpr int64_t kRows = 5;
  for (const DType act : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t width : {16, 600, 1032, 9000}) {
      SCOPED_TRACE(NameOf(act) + " " + std::to_string(width));
      const std::vector<double> ones(width, 1.25), rstds(kRows, 1.5);
      ExpectSameBitsAtAnyAddress([&](TestMemory& memory, int64_t gap) {
        return RmsNormForward{.x = Filled(memory, act, kRows, width, gap),
                              .weight_C = memory.Values(act, {width}, ones),
                              .y = memory.Output(act, {kRows, width}),
                              .rstd_R = memory.Output(DType::kFloat32, {kRows})};
      });
      ExpectSameBitsAtAnyAddress([&](TestMemory& memory, int64_t gap) {
        return LayerNormBackward{.d_y = Filled(memory, act, kRows, width, gap),
                                 .x = Filled(memory, act, kRows, width, 0),
                                 .weight_C = memory.Values(act, {width}, ones),
                                 .mean_R = memory.Values(DType::kFloat32, {kRows}, rstds),
                                 .rstd_R = memory.Values(DType::kFloat32, {kRows}, rstds),
                                 .d_x = memory.Output(act, {kRows, width}),
                                 .d_weight_C = memory.Output(DType::kFloat32, {width}),
                                 .d_bias_C = memory.Output(DType::kFloat32, {width})};
      });
      ExpectSameBitsAtAnyAddress([&](TestMemory& memory, int64_t gap) {
        return BiasBackward{.d_out_TN = Filled(memory, act, kRows, width, gap),
                            .d_bias_N = memory.Output(DType::kFloat32, {width})};
      });
    }
  }
}

}  // namespace
}  // namespace shale::testing
