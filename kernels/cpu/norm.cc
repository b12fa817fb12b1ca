// RMSNorm and LayerNorm. The kernels make two to four passes over a row, all but the first in cache. They are bound by
// memory, in bf16 without instructions for it by rounding.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include "kernels/ops/norm.h"

#include <cmath>
#include <cstring>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/columns.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/row_prefetch.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Returns the row to normalize: x, or `sum` after storing x + residual there.
template <class T>
HWY_INLINE const T* AddResidual(const T* x, const T* residual, T* sum, int64_t c) {
  if (residual == nullptr) return x;
  Map(
      c, [](Vector a, Vector b) HWY_ATTR { return hn::Add(a, b); }, sum, x, residual);
  return sum;
}

// Sets d_x[i] = f(d_y[i], x[i], weight[i]), plus d_residual[i] if there is one.
template <class T, class F>
HWY_INLINE void InputGradient(int64_t c, const F& f, const T* d_y, const T* x, const T* weight, const T* d_residual,
                              T* d_x) {
  if (d_residual == nullptr) return Map(c, f, d_x, d_y, x, weight);
  const auto add = [&f](Vector d, Vector v, Vector w, Vector r) HWY_ATTR { return hn::Add(f(d, v, w), r); };
  Map(c, add, d_x, d_y, x, weight, d_residual);
}

// Short rows are those of heads. They lie apart from those of the next token, where hardware prefetchers lose track.
template <class T>
HWY_INLINE void PrefetchShortRows(const Rows<const T>& rows, int64_t r, int64_t count, int64_t c) {
  constexpr int64_t kShort = 256, kAhead = 16;
  if (c <= kShort && r + kAhead < count) PrefetchElements(rows[r + kAhead], c);
}

template <class T>
void RmsNormForwardT(const RmsNormForward& op, int64_t begin, int64_t end) {
  const Rows<const T> xs(op.x), residuals(op.residual);
  const Rows<T> sums(op.sum), ys(op.y);
  const T* weight = op.weight_C.as<const T>();
  float* rstds = op.rstd_R.as<float>();
  const int64_t c = op.x.dim(-1), rows = RowCount(op.x);
  for (int64_t r = begin; r < end; ++r) {
    PrefetchShortRows(xs, r, rows, c);
    const T* x = xs[r];
    const T* residual = residuals[r];
    T* sum = sums[r];
    T* y = ys[r];
    const T* source = AddResidual(x, residual, sum, c);
    const auto add_square = [](Vector squares, Vector s) HWY_ATTR { return hn::MulAdd(s, s, squares); };
    const Vector squares = Fold(c, add_square, source);
    const double mean = static_cast<double>(SumOfLanes(squares)) / static_cast<double>(c);
    const float rstd = static_cast<float>(1 / std::sqrt(mean + op.epsilon));
    rstds[r] = rstd;
    if (y == nullptr) continue;
    const Vector scale = Splat(rstd), offset = Splat(op.weight_offset);
    const auto normalize = [scale, offset](Vector s, Vector w)
                               HWY_ATTR { return hn::Mul(hn::Mul(s, scale), hn::Add(w, offset)); };
    Map(c, normalize, y, source, weight);
  }
}

template <class T>
void RmsNormBackwardT(const RmsNormBackward& op, int64_t begin, int64_t end, float* d_weight) {
  const Rows<const T> d_ys(op.d_y), xs(op.x), d_residuals(op.d_residual);
  const Rows<T> d_xs(op.d_x);
  const T* weight = op.weight_C.as<const T>();
  const float* rstds = op.rstd_R.as<const float>();
  const int64_t c = op.x.dim(-1), rows = RowCount(op.x);
  std::memset(d_weight, 0, static_cast<size_t>(c) * sizeof(float));
  for (int64_t r = begin; r < end; ++r) {
    PrefetchShortRows(d_ys, r, rows, c);
    PrefetchShortRows(xs, r, rows, c);
    const T* d_y = d_ys[r];
    const T* x = xs[r];
    const T* d_residual = d_residuals[r];
    T* d_x = d_xs[r];
    const Vector rstd = Splat(rstds[r]), offset = Splat(op.weight_offset);
    SumInTurns dot = NoSum();
    ForVectorsInTurns(c, [&](int64_t i, auto lanes, int turn) HWY_ATTR {
      const Vector g = lanes.Load(d_y + i);
      const Vector n = hn::Mul(lanes.Load(x + i), rstd);
      const Vector gn = hn::Mul(g, n);
      lanes.Store(hn::Add(lanes.Load(d_weight + i), gn), d_weight + i);
      dot.of_turn[turn] = hn::MulAdd(gn, hn::Add(lanes.Load(weight + i), offset), dot.of_turn[turn]);
    });
    const Vector mean_gn = Splat(TotalOf(dot) / static_cast<float>(c));
    const auto gradient = [=](Vector d, Vector v, Vector w) HWY_ATTR {
      return hn::Mul(rstd, hn::NegMulAdd(hn::Mul(v, rstd), mean_gn, hn::Mul(d, hn::Add(w, offset))));
    };
    InputGradient(c, gradient, d_y, x, weight, d_residual, d_x);
  }
}

template <class T>
void LayerNormForwardT(const LayerNormForward& op, int64_t begin, int64_t end) {
  const Rows<const T> xs(op.x), residuals(op.residual);
  const Rows<T> sums(op.sum), ys(op.y);
  const T* weight = op.weight_C.as<const T>();
  const T* bias = op.bias_C.as<const T>();
  float* means = op.mean_R.as<float>();
  float* rstds = op.rstd_R.as<float>();
  const int64_t c = op.x.dim(-1);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = xs[r];
    const T* residual = residuals[r];
    T* sum = sums[r];
    T* y = ys[r];
    const T* source = AddResidual(x, residual, sum, c);
    const Vector total = Fold(
        c, [](Vector sum, Vector s) HWY_ATTR { return hn::Add(sum, s); }, source);
    const Vector mean = Splat(SumOfLanes(total) / static_cast<float>(c));
    const auto add_square = [mean](Vector squares, Vector s) HWY_ATTR {
      const Vector centred = hn::Sub(s, mean);
      return hn::MulAdd(centred, centred, squares);
    };
    const Vector squares = Fold(c, add_square, source);
    const double variance = static_cast<double>(SumOfLanes(squares)) / static_cast<double>(c);
    const float rstd = static_cast<float>(1 / std::sqrt(variance + op.epsilon));
    means[r] = hn::GetLane(mean);
    rstds[r] = rstd;
    if (y == nullptr) continue;
    const Vector scale = Splat(rstd);
    const auto normalize = [=](Vector s, Vector w, Vector b)
                               HWY_ATTR { return hn::MulAdd(hn::Mul(hn::Sub(s, mean), scale), w, b); };
    Map(c, normalize, y, source, weight, bias);
  }
}

template <class T>
void LayerNormBackwardT(const LayerNormBackward& op, int64_t begin, int64_t end, float* d_weight) {
  const Rows<const T> d_ys(op.d_y), xs(op.x), d_residuals(op.d_residual);
  const Rows<T> d_xs(op.d_x);
  const T* weight = op.weight_C.as<const T>();
  const float* means = op.mean_R.as<const float>();
  const float* rstds = op.rstd_R.as<const float>();
  const int64_t c = op.x.dim(-1);
  float* d_bias = d_weight + c;
  std::memset(d_weight, 0, static_cast<size_t>(2 * c) * sizeof(float));
  for (int64_t r = begin; r < end; ++r) {
    const T* d_y = d_ys[r];
    const T* x = xs[r];
    const T* d_residual = d_residuals[r];
    T* d_x = d_xs[r];
    const Vector mean = Splat(means[r]);
    const Vector rstd = Splat(rstds[r]);
    SumInTurns sum_g = NoSum(), dot = NoSum();
    ForVectorsInTurns(c, [&](int64_t i, auto lanes, int turn) HWY_ATTR {
      const Vector d = lanes.Load(d_y + i);
      const Vector n = hn::Mul(hn::Sub(lanes.Load(x + i), mean), rstd);
      lanes.Store(hn::MulAdd(d, n, lanes.Load(d_weight + i)), d_weight + i);
      lanes.Store(hn::Add(d, lanes.Load(d_bias + i)), d_bias + i);
      // Lanes past the end have d = 0.
      const Vector g = hn::Mul(d, lanes.Load(weight + i));
      sum_g.of_turn[turn] = hn::Add(sum_g.of_turn[turn], g);
      dot.of_turn[turn] = hn::MulAdd(g, n, dot.of_turn[turn]);
    });
    const Vector mean_g = Splat(TotalOf(sum_g) / static_cast<float>(c));
    const Vector mean_gn = Splat(TotalOf(dot) / static_cast<float>(c));
    const auto gradient = [=](Vector d, Vector v, Vector w) HWY_ATTR {
      const Vector n = hn::Mul(hn::Sub(v, mean), rstd);
      return hn::Mul(rstd, hn::NegMulAdd(n, mean_gn, hn::Sub(hn::Mul(d, w), mean_g)));
    };
    InputGradient(c, gradient, d_y, x, weight, d_residual, d_x);
  }
}

// These functions compute rows [begin, end). The backward ones write the partial sums of the parameters' gradients over
// these rows to `partial`, in scratch, also where an op does not want them: the rows are in the cache anyway.
void RmsNormForwardRows(const RmsNormForward& op, int64_t begin, int64_t end) {
  ForActivations(op.x.dtype, [&](auto element) HWY_ATTR { RmsNormForwardT<decltype(element)>(op, begin, end); });
}
void RmsNormBackwardRows(const RmsNormBackward& op, int64_t begin, int64_t end, float* partial) {
  ForActivations(op.x.dtype,
                 [&](auto element) HWY_ATTR { RmsNormBackwardT<decltype(element)>(op, begin, end, partial); });
}
void LayerNormForwardRows(const LayerNormForward& op, int64_t begin, int64_t end) {
  ForActivations(op.x.dtype, [&](auto element) HWY_ATTR { LayerNormForwardT<decltype(element)>(op, begin, end); });
}
void LayerNormBackwardRows(const LayerNormBackward& op, int64_t begin, int64_t end, float* partial) {
  ForActivations(op.x.dtype,
                 [&](auto element) HWY_ATTR { LayerNormBackwardT<decltype(element)>(op, begin, end, partial); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {

HWY_EXPORT(RmsNormForwardRows);
HWY_EXPORT(RmsNormBackwardRows);
HWY_EXPORT(LayerNormForwardRows);
HWY_EXPORT(LayerNormBackwardRows);

absl::Status Run(const RmsNormForward& op, Scratch scratch, const Context& context) {
  ParallelFor(*context.team, RowCount(op.x), RowsPerBlock(op.x.dim(-1)), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormForwardRows)(op, begin, end);
  });
  return absl::OkStatus();
}

absl::Status Run(const LayerNormForward& op, Scratch scratch, const Context& context) {
  ParallelFor(*context.team, RowCount(op.x), RowsPerBlock(op.x.dim(-1)), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormForwardRows)(op, begin, end);
  });
  return absl::OkStatus();
}

namespace {

// Adds the partial sums of a gradient up, unless it is absent.
void AddColumns(const float* partials, int64_t blocks, int64_t stride, const Tensor& gradient_C, bool accumulate,
                const Context& context) {
  if (!gradient_C.present()) return;
  AddPartials(partials, blocks, stride, gradient_C.elements(), gradient_C.as<float>(), accumulate, *context.team);
}

}  // namespace

int64_t ScratchBytesOf(const RmsNormBackward& op, const Context& context) {
  return ColumnScratchBytes(RowCount(op.x), op.x.dim(-1));
}

absl::Status Run(const RmsNormBackward& op, Scratch scratch, const Context& context) {
  const int64_t c = op.x.dim(-1);
  const Partition rows = RowPartition(RowCount(op.x));
  auto* partials = reinterpret_cast<float*>(scratch.data);
  ParallelFor(*context.team, rows.n, rows.block, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormBackwardRows)(op, begin, end, partials + begin / rows.block * c);
  });
  AddColumns(partials, rows.blocks(), c, op.d_weight_C, op.accumulate, context);
  return absl::OkStatus();
}

// The scratch of a block holds partial sums of d_weight, followed by those of d_bias.
int64_t ScratchBytesOf(const LayerNormBackward& op, const Context& context) {
  return ColumnScratchBytes(RowCount(op.x), 2 * op.x.dim(-1));
}

absl::Status Run(const LayerNormBackward& op, Scratch scratch, const Context& context) {
  const int64_t c = op.x.dim(-1);
  const Partition rows = RowPartition(RowCount(op.x));
  auto* partials = reinterpret_cast<float*>(scratch.data);
  ParallelFor(*context.team, rows.n, rows.block, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormBackwardRows)(op, begin, end, partials + begin / rows.block * 2 * c);
  });
  AddColumns(partials, rows.blocks(), 2 * c, op.d_weight_C, op.accumulate, context);
  AddColumns(partials + c, rows.blocks(), 2 * c, op.d_bias_C, op.accumulate, context);
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
