// RMSNorm and LayerNorm, forward.
//
// A team of threads owns a row at a time (see row_tile.h). It reads x (and residual) once from memory and writes sum
// and y once, so the kernel is bound by memory. A team requests its next row before it reduces the present one, so that
// the memory is never idle while it waits for a sum. Rows too wide for the largest team are processed tile by tile by
// a kernel of their own, whose loops over the row each read it again. A thread reads the elements that it owns before
// it writes there, so that y may be x.
#include <algorithm>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/row_tile.h"
#include "kernels/integers.h"
#include "kernels/ops/norm.h"

namespace shale::cuda {
namespace {

// The operands of LayerNorm, which has `mean` and `bias`, if kCentered is set, else those of RMSNorm.
template <class T>
struct ForwardOperands {
  Rows<T> x, residual, sum;
  Global<T> weight, bias;
  Rows<T> y;
  Global<float> mean, rstd;
  int64_t R, C;
  float epsilon, weight_offset;
};

// Replaces x by x + residual, rounded as `sum` is stored.
template <class Tile, class T = typename Tile::Element>
SHALE_DEVICE void AddResidual(Tile& x, const Tile& residual) {
  ForEachElement<Tile>(
      [&](int p, int i) { x.at[p].at[i] = Narrow<T>(Widen(x.at[p].at[i]) + Widen(residual.at[p].at[i])); });
}

// Adds to `sums` the elements of a tile, if kCentered is set, else their squares.
template <bool kCentered, class Tile>
SHALE_DEVICE void AddElements(const Tile& s, HalfSums<Tile, 1>& sums) {
  ForEachElement<Tile>([&](int p, int i) {
    const float value = Widen(s.at[p].at[i]);
    sums.Of(0, p) = kCentered ? sums.Of(0, p) + value : fmaf(value, value, sums.Of(0, p));
  });
}

// Adds to `sums` the squares of the elements of a tile at column `tile`, less their mean.
template <class Tile>
SHALE_DEVICE void AddCentered(const Tile& s, float mean, int64_t tile, int64_t end, HalfSums<Tile, 1>& sums) {
  ForEachElement<Tile>([&](int p, int i) {
    const float centered = Widen(s.at[p].at[i]) - mean;
    if (Tile::Column(tile, p) + i < end) sums.Of(0, p) = fmaf(centered, centered, sums.Of(0, p));
  });
}

// Replaces the elements of a tile by y, given its weights, and for LayerNorm its biases.
template <bool kCentered, class Tile, class T = typename Tile::Element>
SHALE_DEVICE void Normalize(Tile& s, const Tile& w, const Tile& b, float mean, float rstd, float weight_offset) {
  ForEachElement<Tile>([&](int p, int i) {
    const float weight = Widen(w.at[p].at[i]);
    if constexpr (kCentered) {
      const float normal = (Widen(s.at[p].at[i]) - mean) * rstd;
      s.at[p].at[i] = Narrow<T>(fmaf(normal, weight, Widen(b.at[p].at[i])));
    } else {
      s.at[p].at[i] = Narrow<T>(Widen(s.at[p].at[i]) * rstd * (weight_offset + weight));
    }
  });
}

SHALE_DEVICE float RstdOf(float squares, int64_t C, float epsilon) {
  return 1.0f / sqrtf(squares / static_cast<float>(C) + epsilon);
}

template <class Tile, bool kCentered, class T = typename Tile::Element>
SHALE_KERNEL SHALE_BOUNDS(Tile::kThreads, Tile::kRowTeam.forward_blocks) NormForwardKernel(ForwardOperands<T> op) {
  const int64_t C = op.C, step = static_cast<int64_t>(gridDim.x) * Tile::kTeams;
  const bool add = op.residual.at.present();
  const auto load = [&](int64_t row, Tile& x, Tile& residual) {
    const int64_t end = row < op.R ? C : 0;
    x.Load(op.x.at, op.x.Begin(row), 0, end);
    if (add) residual.Load(op.residual.at, op.residual.Begin(row), 0, end);
  };
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * Tile::kTeams;
  Tile next, next_residual;
  if constexpr (Tile::kWholePacks) load(begin + threadIdx.y, next, next_residual);
  int turn = 0;
  for (int64_t first = begin; first < op.R; first += step, turn ^= 1) {
    const int64_t row = first + threadIdx.y, end = row < op.R ? C : 0;
    const bool writes = threadIdx.x == 0 && row < op.R;
    Tile s, residual;
    if constexpr (Tile::kWholePacks) {
      s = next;
      residual = next_residual;
      load(row + step, next, next_residual);
    } else {
      load(row, s, residual);
    }
    if (add) {
      AddResidual(s, residual);
      s.Store(op.sum.at, op.sum.Begin(row), 0, end);
    }
    float mean = 0, sum[1];
    HalfSums<Tile, 1> sums;
    AddElements<kCentered>(s, sums);
    if constexpr (kCentered) {
      SumOverTeam<Tile, 0>(sums, sum, turn);
      mean = sum[0] / static_cast<float>(C);
      if (writes) op.mean.Store(row, mean);
      sums = {};
      AddCentered(s, mean, 0, end, sums);
    }
    SumOverTeam<Tile, 1>(sums, sum, turn);
    const float rstd = RstdOf(sum[0], C, op.epsilon);
    if (writes) op.rstd.Store(row, rstd);
    if (!op.y.at.present()) continue;
    Tile w, b;  // From the L1 cache. In registers, they would leave no room for the next row.
    w.Load(op.weight, 0, 0, end);
    if constexpr (kCentered) b.Load(op.bias, 0, 0, end);
    Normalize<kCentered>(s, w, b, mean, rstd, op.weight_offset);
    s.Store(op.y.at, op.y.Begin(row), 0, end);
  }
}

// Computes rows wider than a tile.
template <class Tile, bool kCentered, class T = typename Tile::Element>
SHALE_KERNEL SHALE_BOUNDS(Tile::kThreads, Tile::kRowTeam.forward_blocks) WideNormForwardKernel(ForwardOperands<T> op) {
  const int64_t row = blockIdx.x, C = op.C;
  const bool first = threadIdx.x == 0, add = op.residual.at.present();
  // The values to normalize, for every loop but the first.
  const Global<T> source = add ? op.sum.at : op.x.at;
  const int64_t source_row = add ? op.sum.Begin(row) : op.x.Begin(row);
  Tile s;

  float mean = 0, sum[1];
  HalfSums<Tile, 1> sums;
  for (int64_t tile = 0; tile < C; tile += Tile::kWidth) {
    s.Load(op.x.at, op.x.Begin(row), tile, C);
    if (add) {
      Tile r;
      r.Load(op.residual.at, op.residual.Begin(row), tile, C);
      AddResidual(s, r);
      s.Store(op.sum.at, source_row, tile, C);
    }
    AddElements<kCentered>(s, sums);
  }
  if constexpr (kCentered) {
    SumOverTeam<Tile, 0>(sums, sum, 0);
    mean = sum[0] / static_cast<float>(C);
    if (first) op.mean.Store(row, mean);
    sums = {};
    for (int64_t tile = 0; tile < C; tile += Tile::kWidth) {
      s.Load(source, source_row, tile, C);
      AddCentered(s, mean, tile, C, sums);
    }
  }
  SumOverTeam<Tile, 1>(sums, sum, 0);
  const float rstd = RstdOf(sum[0], C, op.epsilon);
  if (first) op.rstd.Store(row, rstd);

  if (!op.y.at.present()) return;
  for (int64_t tile = 0; tile < C; tile += Tile::kWidth) {
    Tile w, b;
    s.Load(source, source_row, tile, C);
    w.Load(op.weight, 0, tile, C);
    if constexpr (kCentered) b.Load(op.bias, 0, tile, C);
    Normalize<kCentered>(s, w, b, mean, rstd, op.weight_offset);
    s.Store(op.y.at, op.y.Begin(row), tile, C);
  }
}

template <class Tile, bool kCentered, class T = typename Tile::Element>
absl::Status StartForward(const char* name, const ForwardOperands<T>& op, StreamHandle stream) {
  const dim3 block(Tile::kTeamThreads, Tile::kTeams);
  if constexpr (Tile::kLargest) {
    if (op.C > Tile::kWidth) {
      return Launch(name, WideNormForwardKernel<Tile, kCentered>,
                    {.grid = dim3(static_cast<unsigned>(op.R)), .block = block}, stream, op);
    }
  }
  const int64_t blocks = std::min(CeilDivide(op.R, Tile::kTeams), kSms * Tile::kRowTeam.forward_blocks);
  return Launch(name, NormForwardKernel<Tile, kCentered>, {.grid = dim3(static_cast<unsigned>(blocks)), .block = block},
                stream, op);
}

template <bool kCentered, class OpType>
absl::Status RunNorm(const OpType& op, const Tensor& bias, const Tensor& mean, float weight_offset,
                     StreamHandle stream) {
  const int64_t C = op.x.dim(-1), R = op.rstd_R.elements();
  const bool aligned = C % (16 / SizeOf(op.x.dtype)) == 0 && RowsAligned(op.x) && RowsAligned(op.residual) &&
                       RowsAligned(op.weight_C) && RowsAligned(bias) && RowsAligned(op.sum) && RowsAligned(op.y);
  return WithElement(op.x.dtype, [&](auto element) {
    using T = decltype(element);
    const ForwardOperands<T> operands = {
        .x = Rows<T>(op.x, "x"),
        .residual = Rows<T>(op.residual, "residual"),
        .sum = Rows<T>(op.sum, "sum"),
        .weight = Whole<T>(op.weight_C, "weight"),
        .bias = Whole<T>(bias, "bias"),
        .y = Rows<T>(op.y, "y"),
        .mean = Whole<float>(mean, "mean"),
        .rstd = Whole<float>(op.rstd_R, "rstd"),
        .R = R,
        .C = C,
        .epsilon = op.epsilon,
        .weight_offset = weight_offset,
    };
    const auto start = [&](auto tile) {
      return StartForward<decltype(tile), kCentered>(OpType::kName.data(), operands, stream);
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
