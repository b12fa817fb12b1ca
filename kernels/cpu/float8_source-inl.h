// The matrices that become fp8 ([Note: sources of fp8] in kernels/ops/float8.h): a piece of a row, computed as the op
// does that a source stands for. kernels/cpu/float8.cc includes it once per instruction set, like simd-inl.h.

#if defined(SHALE_KERNELS_CPU_FLOAT8_SOURCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_FLOAT8_SOURCE_INL_H_
#undef SHALE_KERNELS_CPU_FLOAT8_SOURCE_INL_H_
#else
#define SHALE_KERNELS_CPU_FLOAT8_SOURCE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/float8_source.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/float8.h"
#include "kernels/reference/index_checks.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Numbers [column, column + count) of a row of the matrix of a source.
struct RowPiece {
  int64_t row, column, count;
};

// Computes y of RmsNormForward, from a row of x.
template <class T>
void ComputeNorm(const T* x, const Float8Source& source, const RowPiece& piece, T* to) {
  const Vector scale = Splat(source.rstd_R.as<const float>()[piece.row]), offset = Splat(source.weight_offset);
  const auto normalize = [scale, offset](Vector s, Vector w)
                             HWY_ATTR { return hn::Mul(hn::Mul(s, scale), hn::Add(w, offset)); };
  Map(piece.count, normalize, to, x + piece.column, source.weight_C.as<const T>() + piece.column);
}

// Computes y of LayerNormForward, from a row of x.
template <class T>
void ComputeLayerNorm(const T* x, const Float8Source& source, const RowPiece& piece, T* to) {
  const Vector mean = Splat(source.mean_R.as<const float>()[piece.row]);
  const Vector scale = Splat(source.rstd_R.as<const float>()[piece.row]);
  const auto normalize = [=](Vector s, Vector w, Vector b)
                             HWY_ATTR { return hn::MulAdd(hn::Mul(hn::Sub(s, mean), scale), w, b); };
  Map(piece.count, normalize, to, x + piece.column, source.weight_C.as<const T>() + piece.column,
      source.bias_C.as<const T>() + piece.column);
}

// Computes what Rope makes of a row of x. `turns` is the table of FillRopeTable.
template <class T>
void ComputeRope(const T* x, const Float8Source& source, const float* turns, const RowPiece& piece, T* to) {
  const Float8Source::Rotation& of = source.rotation;
  const int64_t half = of.head_width / 2;
  const int64_t position = PositionOf(source.position_ids_BS, piece.row, of.sequence_length);
  const float *const cosines = turns + 2 * position * half, *const sines = cosines + half;
  const int64_t rotated = std::clamp<int64_t>(of.columns() - piece.column, 0, piece.count);
  std::memcpy(static_cast<void*>(to + rotated), x + piece.column + rotated,
              static_cast<size_t>(piece.count - rotated) * sizeof(T));
  for (int64_t done = 0; done < rotated;) {
    // The rest of one half of a head.
    const int64_t column = piece.column + done, first = column % half;
    const int64_t count = std::min(half - first, rotated - done);
    const bool second = column / half % 2 == 1;
    const T *const own = x + column, *const other = second ? own - half : own + half;
    ForVectors(count, [&](int64_t i, auto some) HWY_ATTR {
      const Vector turned = hn::Mul(some.Load(own + i), some.Load(cosines + first + i));
      const Vector pair = some.Load(other + i), sine = some.Load(sines + first + i);
      some.Store(second ? hn::MulAdd(pair, sine, turned) : hn::NegMulAdd(pair, sine, turned), to + done + i);
    });
    done += count;
  }
}

// Computes y of GeluForward, or with `d_y` d_x of GeluBackward.
template <class Kind, class T>
void ComputeGelu(const T* x, const T* d_y, int64_t count, T* to) {
  if (d_y == nullptr) {
    return Map(
        count, [](Vector v) HWY_ATTR { return Kind::Value(v); }, to, x);
  }
  const auto chain = [](Vector d, Vector v) HWY_ATTR { return hn::Mul(d, Kind::Both(v).slope); };
  Map(count, chain, to, d_y, x);
}

// Computes y of SwiGluForward, from rows of gate_up.
template <class Gate, class T>
void ComputeGate(const T* gate, const T* up, int64_t count, T* to) {
  Map(
      count, [](Vector g, Vector u) HWY_ATTR { return GatedValue<Gate>(g, u); }, to, gate, up);
}

// Computes a piece of a row of d_gate_up of SwiGluBackward, from rows of gate_up and d_y.
template <class Gate, class T>
void ComputeGateGradient(const T* gate, const T* d_y, int64_t F, const RowPiece& piece, T* to) {
  const T* const up = gate + F;
  const int64_t gates = std::clamp<int64_t>(F - piece.column, 0, piece.count), ups = piece.count - gates;
  const int64_t f = piece.column, first_up = std::max(piece.column - F, int64_t{0});
  const auto of_gate = [](Vector g, Vector u, Vector d) HWY_ATTR { return GradientsOf(Gate::Both(g), u, d).gate; };
  const auto of_up = [](Vector g, Vector u, Vector d) HWY_ATTR { return GradientsOf(Gate::Both(g), u, d).up; };
  if (gates > 0) Map(gates, of_gate, to, gate + f, up + f, d_y + f);
  if (ups > 0) Map(ups, of_up, to + gates, gate + first_up, up + first_up, d_y + first_up);
}

// Computes a piece of a row of gates, or of their gradient.
template <class T>
void ComputeGates(const T* x, const Float8Source& source, int64_t F, const RowPiece& piece, T* to) {
  const bool silu = source.gate == GateKind::kSilu;
  if (source.kind == Float8Source::Kind::kGate) {
    const T *gate = x + piece.column, *up = gate + F;
    return silu ? ComputeGate<Silu>(gate, up, piece.count, to) : ComputeGate<TanhGelu>(gate, up, piece.count, to);
  }
  const T* const d_y = source.d_y_RF.as<const T>() + piece.row * F;
  silu ? ComputeGateGradient<Silu>(x, d_y, F, piece, to) : ComputeGateGradient<TanhGelu>(x, d_y, F, piece, to);
}

// Computes a piece of a row of the matrix of a source that is not kMatrix, rounded as its op stores it.
template <class T>
void ComputeRow(const SourceMatrix& matrix, const RowPiece& piece, T* to) {
  using Kind = Float8Source::Kind;
  const Tensor& x_RC = matrix.x_RC;
  const Float8Source& source = matrix.source;
  const T* const x = x_RC.as<const T>() + piece.row * x_RC.stride(0);
  switch (source.kind) {
    case Kind::kMatrix: return;
    case Kind::kNorm: return ComputeNorm(x, source, piece, to);
    case Kind::kLayerNorm: return ComputeLayerNorm(x, source, piece, to);
    case Kind::kRope: return ComputeRope(x, source, matrix.turns, piece, to);
    case Kind::kGelu:
    case Kind::kGeluGradient: {
      const bool gradient = source.kind == Kind::kGeluGradient;
      const T* const d_y = gradient ? source.d_y_RF.as<const T>() + piece.row * x_RC.dim(1) + piece.column : nullptr;
      return source.gelu == GeluKind::kTanh ? ComputeGelu<TanhGelu>(x + piece.column, d_y, piece.count, to)
                                            : ComputeGelu<ErfGelu>(x + piece.column, d_y, piece.count, to);
    }
    case Kind::kGate:
    case Kind::kGateGradient: return ComputeGates(x, source, x_RC.dim(1) / 2, piece, to);
  }
}

// Returns a piece of a row of the matrix: where it lies in x, or `buffer`, into which it is computed.
template <class T>
const T* SourceRow(const SourceMatrix& matrix, const RowPiece& piece, T* buffer) {
  const Tensor& x_RC = matrix.x_RC;
  if (!matrix.computes()) return x_RC.as<const T>() + piece.row * x_RC.stride(0) + piece.column;
  ForActivations(x_RC.dtype,
                 [&](auto stored) HWY_ATTR { ComputeRow(matrix, piece, reinterpret_cast<decltype(stored)*>(buffer)); });
  return buffer;
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
