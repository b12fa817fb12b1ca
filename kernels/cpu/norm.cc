// RMSNorm and LayerNorm. A row is read twice, the second time from L1; memory bounds all of it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// s[i], or x[i] + residual[i] stored as sum[i]: what the norm is taken of.
template <class T, class Lanes>
HWY_INLINE Vector AddResidual(Lanes lanes, const T* x, const T* residual, T* sum, int64_t i) {
  const Vector value = lanes.Load(x + i);
  if (residual == nullptr) return value;
  const Vector total = Rounded<T>(hn::Add(value, lanes.Load(residual + i)));
  lanes.Store(total, sum + i);
  return total;
}

template <class T>
void RmsNormForwardT(const RmsNormForward& op, int64_t begin, int64_t end) {
  const Rows<const T> xs(op.x), residuals(op.residual);
  const Rows<T> sums(op.sum), ys(op.y);
  const T* weight = op.weight_C.as<const T>();
  float* rstds = op.rstd_R.as<float>();
  const int64_t c = op.x.dim(-1);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = xs[r];
    const T* residual = residuals[r];
    T* sum = sums[r];
    T* y = ys[r];
    Vector squares = hn::Zero(Floats());
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      const Vector s = AddResidual(lanes, x, residual, sum, i);
      squares = hn::MulAdd(s, s, squares);
    });
    const double mean = static_cast<double>(SumOfLanes(squares)) / static_cast<double>(c);
    const float rstd = static_cast<float>(1 / std::sqrt(mean + op.epsilon));
    rstds[r] = rstd;
    const T* source = residual == nullptr ? x : sum;
    const Vector scale = Splat(rstd);
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      lanes.Store(hn::Mul(hn::Mul(lanes.Load(source + i), scale), lanes.Load(weight + i)), y + i);
    });
  }
}

template <class T>
void RmsNormBackwardT(const RmsNormBackward& op, int64_t begin, int64_t end, float* d_weight) {
  const Rows<const T> d_ys(op.d_y), xs(op.x), d_residuals(op.d_residual);
  const Rows<T> d_xs(op.d_x);
  const T* weight = op.weight_C.as<const T>();
  const float* rstds = op.rstd_R.as<const float>();
  const int64_t c = op.x.dim(-1);
  std::memset(d_weight, 0, static_cast<size_t>(c) * sizeof(float));
  for (int64_t r = begin; r < end; ++r) {
    const T* d_y = d_ys[r];
    const T* x = xs[r];
    const T* d_residual = d_residuals[r];
    T* d_x = d_xs[r];
    const Vector rstd = Splat(rstds[r]);
    Vector dot = hn::Zero(Floats());
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      const Vector g = lanes.Load(d_y + i);
      const Vector n = hn::Mul(lanes.Load(x + i), rstd);
      const Vector gn = hn::Mul(g, n);
      lanes.Store(hn::Add(lanes.Load(d_weight + i), gn), d_weight + i);
      dot = hn::MulAdd(gn, lanes.Load(weight + i), dot);
    });
    const Vector mean_gn = Splat(SumOfLanes(dot) / static_cast<float>(c));
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      const Vector g = hn::Mul(lanes.Load(d_y + i), lanes.Load(weight + i));
      const Vector n = hn::Mul(lanes.Load(x + i), rstd);
      const Vector part = hn::Mul(rstd, hn::NegMulAdd(n, mean_gn, g));
      lanes.Store(d_residual == nullptr ? part : hn::Add(part, lanes.Load(d_residual + i)), d_x + i);
    });
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
    Vector total = hn::Zero(Floats());
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      total = hn::Add(total, AddResidual(lanes, x, residual, sum, i));
    });
    const T* source = residual == nullptr ? x : sum;
    const Vector mean = Splat(SumOfLanes(total) / static_cast<float>(c));
    Vector squares = hn::Zero(Floats());
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      const Vector centred = lanes.Keep(hn::Sub(lanes.Load(source + i), mean));
      squares = hn::MulAdd(centred, centred, squares);
    });
    const double variance = static_cast<double>(SumOfLanes(squares)) / static_cast<double>(c);
    const float rstd = static_cast<float>(1 / std::sqrt(variance + op.epsilon));
    means[r] = hn::GetLane(mean);
    rstds[r] = rstd;
    const Vector scale = Splat(rstd);
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      const Vector n = hn::Mul(hn::Sub(lanes.Load(source + i), mean), scale);
      lanes.Store(hn::MulAdd(n, lanes.Load(weight + i), lanes.Load(bias + i)), y + i);
    });
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
    Vector sum_g = hn::Zero(Floats());
    Vector dot = hn::Zero(Floats());
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      const Vector d = lanes.Load(d_y + i);
      const Vector n = hn::Mul(hn::Sub(lanes.Load(x + i), mean), rstd);
      lanes.Store(hn::MulAdd(d, n, lanes.Load(d_weight + i)), d_weight + i);
      lanes.Store(hn::Add(d, lanes.Load(d_bias + i)), d_bias + i);
      // Lanes past the end have d = 0.
      const Vector g = hn::Mul(d, lanes.Load(weight + i));
      sum_g = hn::Add(sum_g, g);
      dot = hn::MulAdd(g, n, dot);
    });
    const Vector mean_g = Splat(SumOfLanes(sum_g) / static_cast<float>(c));
    const Vector mean_gn = Splat(SumOfLanes(dot) / static_cast<float>(c));
    ForVectors(c, [&](int64_t i, auto lanes) HWY_ATTR {
      const Vector g = hn::Mul(lanes.Load(d_y + i), lanes.Load(weight + i));
      const Vector n = hn::Mul(hn::Sub(lanes.Load(x + i), mean), rstd);
      const Vector part = hn::Mul(rstd, hn::NegMulAdd(n, mean_gn, hn::Sub(g, mean_g)));
      lanes.Store(d_residual == nullptr ? part : hn::Add(part, lanes.Load(d_residual + i)), d_x + i);
    });
  }
}

// Rows [begin, end); the backward ones leave their partial sums of the parameters' gradients behind.
void RmsNormForwardRows(const RmsNormForward& op, int64_t begin, int64_t end) {
  op.x.dtype == DType::kFloat32 ? RmsNormForwardT<float>(op, begin, end) : RmsNormForwardT<BFloat16>(op, begin, end);
}
void RmsNormBackwardRows(const RmsNormBackward& op, int64_t begin, int64_t end, float* partial) {
  op.x.dtype == DType::kFloat32 ? RmsNormBackwardT<float>(op, begin, end, partial)
                                : RmsNormBackwardT<BFloat16>(op, begin, end, partial);
}
void LayerNormForwardRows(const LayerNormForward& op, int64_t begin, int64_t end) {
  op.x.dtype == DType::kFloat32 ? LayerNormForwardT<float>(op, begin, end)
                                : LayerNormForwardT<BFloat16>(op, begin, end);
}
void LayerNormBackwardRows(const LayerNormBackward& op, int64_t begin, int64_t end, float* partial) {
  op.x.dtype == DType::kFloat32 ? LayerNormBackwardT<float>(op, begin, end, partial)
                                : LayerNormBackwardT<BFloat16>(op, begin, end, partial);
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
  ParallelFor(context.threads, RowCount(op.x), RowsPerBlock(op.x.dim(-1)), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormForwardRows)(op, begin, end);
  });
  return absl::OkStatus();
}

absl::Status Run(const LayerNormForward& op, Scratch scratch, const Context& context) {
  ParallelFor(context.threads, RowCount(op.x), RowsPerBlock(op.x.dim(-1)), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormForwardRows)(op, begin, end);
  });
  return absl::OkStatus();
}

int64_t ScratchBytesOf(const RmsNormBackward& op, const Context& context) {
  return ColumnScratchBytes(RowCount(op.x), op.x.dim(-1));
}

absl::Status Run(const RmsNormBackward& op, Scratch scratch, const Context& context) {
  const int64_t c = op.x.dim(-1);
  const Partition rows = RowPartition(RowCount(op.x));
  auto* partials = reinterpret_cast<float*>(scratch.data);
  ParallelFor(context.threads, rows.n, rows.block, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormBackwardRows)(op, begin, end, partials + begin / rows.block * c);
  });
  AddPartials(partials, rows.blocks(), c, c, op.d_weight_C.as<float>(), op.accumulate, context.threads);
  return absl::OkStatus();
}

// A block's partial sums are those of d_weight, then those of d_bias.
int64_t ScratchBytesOf(const LayerNormBackward& op, const Context& context) {
  return ColumnScratchBytes(RowCount(op.x), 2 * op.x.dim(-1));
}

absl::Status Run(const LayerNormBackward& op, Scratch scratch, const Context& context) {
  const int64_t c = op.x.dim(-1);
  const Partition rows = RowPartition(RowCount(op.x));
  auto* partials = reinterpret_cast<float*>(scratch.data);
  ParallelFor(context.threads, rows.n, rows.block, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormBackwardRows)(op, begin, end, partials + begin / rows.block * 2 * c);
  });
  AddPartials(partials, rows.blocks(), 2 * c, c, op.d_weight_C.as<float>(), op.accumulate, context.threads);
  AddPartials(partials + c, rows.blocks(), 2 * c, c, op.d_bias_C.as<float>(), op.accumulate, context.threads);
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
