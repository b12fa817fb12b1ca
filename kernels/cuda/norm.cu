// RMSNorm and LayerNorm, forward.
//
// A team of threads owns a row (see row_tile.h). It reads x (and residual) once from memory and writes sum and y once,
// so the kernel is bound by memory. A row too wide for the largest team is processed tile by tile, and each loop over
// the row reads it again. A thread reads the elements that it owns before it writes there, so that y may be x.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/row_tile.h"
#include "kernels/integers.h"
#include "kernels/ops/norm.h"

namespace shale::cuda {
namespace {

// Computes LayerNorm, which has `mean` and `bias`, if kCentered is set, else RMSNorm.
template <class Tile, bool kCentered, class T = typename Tile::Element>
SHALE_KERNEL SHALE_BOUNDS(Tile::kThreads, 1024 / Tile::kThreads)
    NormForwardKernel(Rows<T> x, Rows<T> residual, Rows<T> sum, Global<T> weight, Global<T> bias, Rows<T> y,
                      Global<float> mean_R, Global<float> rstd_R, int64_t R, int64_t C, float epsilon,
                      float weight_offset) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * Tile::kTeams + threadIdx.y;
  const int64_t end = row < R ? C : 0;
  const bool first = threadIdx.x == 0 && row < R;
  const bool add = residual.at.present();
  // The values to normalize, for every loop but the first.
  const Global<T> source = add ? sum.at : x.at;
  const int64_t source_row = add ? sum.Begin(row) : x.Begin(row);
  const bool held = C <= Tile::kWidth;
  Tile s;

  float mean = 0, squares[1] = {0};
  float total[1] = {0};
  for (int64_t tile = 0; tile < C; tile += Tile::kWidth) {
    s.Load(x.at, x.Begin(row), tile, end);
    if (add) {
      Tile r;
      r.Load(residual.at, residual.Begin(row), tile, end);
      ForEachElement<Tile>(
          [&](int p, int i) { s.at[p].at[i] = Narrow<T>(Widen(s.at[p].at[i]) + Widen(r.at[p].at[i])); });
      s.Store(sum.at, source_row, tile, end);
    }
    ForEachElement<Tile>([&](int p, int i) {
      const float value = Widen(s.at[p].at[i]);
      if constexpr (kCentered) {
        total[0] += value;
      } else {
        squares[0] = fmaf(value, value, squares[0]);
      }
    });
  }
  if constexpr (kCentered) {
    SumOverTeam<Tile, 0>(total, 0);
    mean = total[0] / static_cast<float>(C);
    if (first) mean_R.Store(row, mean);
    for (int64_t tile = 0; tile < C; tile += Tile::kWidth) {
      if (!held) s.Load(source, source_row, tile, end);
      ForEachElement<Tile>([&](int p, int i) {
        const float centered = Widen(s.at[p].at[i]) - mean;
        if (Tile::Column(tile, p) + i < end) squares[0] = fmaf(centered, centered, squares[0]);
      });
    }
  }
  SumOverTeam<Tile, 1>(squares, 0);
  const float rstd = 1.0f / sqrtf(squares[0] / static_cast<float>(C) + epsilon);
  if (first) rstd_R.Store(row, rstd);

  for (int64_t tile = 0; tile < C; tile += Tile::kWidth) {
    if (!held) s.Load(source, source_row, tile, end);
    Tile w;
    w.Load(weight, 0, tile, end);
    if constexpr (kCentered) {
      Tile b;
      b.Load(bias, 0, tile, end);
      ForEachElement<Tile>([&](int p, int i) {
        const float normal = (Widen(s.at[p].at[i]) - mean) * rstd;
        s.at[p].at[i] = Narrow<T>(fmaf(normal, Widen(w.at[p].at[i]), Widen(b.at[p].at[i])));
      });
    } else {
      ForEachElement<Tile>([&](int p, int i) {
        s.at[p].at[i] = Narrow<T>(Widen(s.at[p].at[i]) * rstd * (weight_offset + Widen(w.at[p].at[i])));
      });
    }
    s.Store(y.at, y.Begin(row), tile, end);
  }
}

template <bool kCentered, class OpType>
absl::Status RunNorm(const OpType& op, const Tensor& bias, const Tensor& mean, float weight_offset,
                     StreamHandle stream) {
  const int64_t C = op.x.dim(-1), R = op.rstd_R.elements();
  const bool aligned = C % (16 / SizeOf(op.x.dtype)) == 0 && RowsAligned(op.x) && RowsAligned(op.residual) &&
                       RowsAligned(op.weight_C) && RowsAligned(bias) && RowsAligned(op.sum) && RowsAligned(op.y);
  return WithElement(op.x.dtype, [&](auto element) {
    using T = decltype(element);
    const auto start = [&](auto tile) {
      using Tile = decltype(tile);
      const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(CeilDivide(R, Tile::kTeams))),
                                 .block = dim3(Tile::kTeamThreads, Tile::kTeams)};
      return Launch(OpType::kName.data(), NormForwardKernel<Tile, kCentered>, shape, stream, Rows<T>(op.x, "x"),
                    Rows<T>(op.residual, "residual"), Rows<T>(op.sum, "sum"), Whole<T>(op.weight_C, "weight"),
                    Whole<T>(bias, "bias"), Rows<T>(op.y, "y"), Whole<float>(mean, "mean"),
                    Whole<float>(op.rstd_R, "rstd"), R, C, op.epsilon, weight_offset);
    };
    return aligned ? WithTile<T, true>(C, start) : WithTile<T, false>(C, start);
  });
}

}  // namespace

absl::Status Run(const RmsNormForward& op, Scratch scratch, StreamHandle stream) {
  return RunNorm<false>(op, Tensor(), Tensor(), op.weight_offset, stream);
}

absl::Status Run(const LayerNormForward& op, Scratch scratch, StreamHandle stream) {
  return RunNorm<true>(op, op.bias_C, op.mean_R, 0.0f, stream);
}

}  // namespace shale::cuda
