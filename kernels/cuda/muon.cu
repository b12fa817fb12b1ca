// The ops of Muon that are no matmuls. See kernels/ops/muon.h.
//
// Each kernel makes one pass and is bound by memory. A thread of MuonDirectionKernel owns a pack of 8 elements, so that
// one block of random bits rounds a pack; threads of the others own 16 elements in packs (flat.h). Operands that do not
// begin at 16-byte addresses go element by element.
#include <algorithm>

#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/rounding.h"
#include "kernels/integers.h"
#include "kernels/ops/muon.h"
#include "kernels/step_scalars.h"

namespace shale::cuda {
namespace {

constexpr int kMuonPack = kPackOf<BFloat16>;

template <int N>
SHALE_DEVICE void StoreMomentum(const Global<float>& to, int64_t i, const Floats<N>& m, const RoundingStream&,
                                int64_t) {
  StoreFloats(to, i, m);
}
template <int N>
SHALE_DEVICE void StoreMomentum(const Global<BFloat16>& to, int64_t i, const Floats<N>& m, const RoundingStream& stream,
                                int64_t shard_begin) {
  StoreRounded(to, i, m, stream, shard_begin);
}

struct MuonSettings {
  RoundingStream stream;  // Without the number, which is on the device.
  int64_t shard_begin;
  float rest;  // 1 - beta.
  bool nesterov;
};

// Computes elements [i, i + N).
template <int N, class Momentum, class Direction>
SHALE_DEVICE void MuonPiece(const Global<float>& update, const Global<int64_t>& number, const Global<float>& gradient,
                            const Global<Momentum>& momentum, const Global<Direction>& direction, MuonSettings settings,
                            int64_t i) {
  Floats<N> g = LoadFloats<N>(gradient, i), m = LoadFloats<N>(momentum, i), way;
  const float factor = update.Load(kUpdateGradientFactor), rest = settings.rest;
  const bool skips = update.Load(kUpdateSkip) != 0;
  for (int k = 0; k < N; ++k) {
    const float clipped = g.at[k] * factor;
    m.at[k] = fmaf(rest, clipped - m.at[k], m.at[k]);
    way.at[k] = settings.nesterov ? fmaf(rest, clipped - m.at[k], m.at[k]) : m.at[k];
    if (skips) way.at[k] = 0;
  }
  StoreFloats(direction, i, way);
  if (skips) return;
  if (number.present()) settings.stream.number = number.Load(0);
  StoreMomentum(momentum, i, m, settings.stream, settings.shard_begin);
}

template <class Momentum, class Direction, int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads)
    MuonDirectionKernel(Global<float> update, Global<int64_t> number, Global<float> gradient, Global<Momentum> momentum,
                        Global<Direction> direction, Global<float> step, MuonSettings settings, int64_t n) {
  if (blockIdx.x == 0 && threadIdx.x < kUpdateSize) {
    const int at = static_cast<int>(threadIdx.x);
    step.Store(at, at == kUpdateLearningRate || at == kUpdateSkip ? update.Load(at) : 1.0f);
  }
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x) * N;
  if (i + N <= n) {
    MuonPiece<N>(update, number, gradient, momentum, direction, settings, i);
  } else if constexpr (N > 1) {
    for (int64_t k = i; k < n; ++k) MuonPiece<1>(update, number, gradient, momentum, direction, settings, k);
  }
}

template <class T, int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads)
    DivideByNormKernel(Global<T> x, Global<double> squares, Global<T> out, float epsilon, int64_t n) {
  const double norm = sqrt(squares.Load(0));
  const auto factor = static_cast<float>(1 / (norm < epsilon ? epsilon : norm));
  ForEachFlatPiece<N>(
      n,
      [&](auto width, int64_t i) {
        constexpr int kCount = decltype(width)::value;
        Floats<kCount> floats = LoadFloats<kCount>(x, i);
        for (int k = 0; k < kCount; ++k) floats.at[k] *= factor;
        return floats;
      },
      [&](auto width, int64_t i, const auto& floats) { StoreFloats(out, i, floats); });
}

// Elements of the diagonal are `to_next` elements apart.
template <class T, int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads) MatrixPolynomialKernel(Global<T> x, Global<T> y, Global<T> out, float a,
                                                               float b, float c, int64_t to_next, int64_t n) {
  ForEachFlatPiece<N>(
      n,
      [&](auto width, int64_t i) {
        constexpr int kCount = decltype(width)::value;
        Floats<kCount> of_x = LoadFloats<kCount>(x, i);
        const Floats<kCount> of_y = LoadFloats<kCount>(y, i);
        int64_t diagonal = Quotient(i + to_next - 1, to_next) * to_next - i;
        for (int k = 0; k < kCount; ++k) {
          const bool on_diagonal = k == diagonal;
          of_x.at[k] = fmaf(b, of_x.at[k], fmaf(c, of_y.at[k], on_diagonal ? a : 0.0f));
          if (on_diagonal) diagonal += to_next;
        }
        return of_x;
      },
      [&](auto width, int64_t i, const auto& floats) { StoreFloats(out, i, floats); });
}

// Calls run(T()) with the type of elements of f32 or bf16.
template <class Run>
absl::Status WithMuonType(DType dtype, const Run& run) {
  return dtype == DType::kFloat32 ? run(float()) : run(BFloat16());
}

}  // namespace

absl::Status Run(const MuonDirection& op, Scratch scratch, StreamHandle stream) {
  const int64_t n = op.direction_P.elements();
  const bool aligned = Aligned16(op.gradient_P) && Aligned16(op.momentum_P) && Aligned16(op.direction_P);
  const MuonSettings settings = {.stream = {.seed = op.seed, .group = op.group, .tensor = StateStream(0)},
                                 .shard_begin = op.shard_begin,
                                 .rest = 1 - op.beta,
                                 .nesterov = op.nesterov};
  // An empty shard has a step, too.
  const int64_t blocks = std::max<int64_t>(1, CeilDivide(n, kFlatThreads * (aligned ? kMuonPack : 1)));
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kFlatThreads)};
  return WithMuonType(op.momentum_P.dtype, [&](auto of_momentum) {
    return WithMuonType(op.direction_P.dtype, [&](auto of_direction) {
      return WithWidth<kMuonPack>(aligned, [&](auto width) {
        using Momentum = decltype(of_momentum);
        using Direction = decltype(of_direction);
        return Launch("MuonDirection", MuonDirectionKernel<Momentum, Direction, decltype(width)::value>, shape, stream,
                      Whole<float>(op.update_5, "update"), Whole<int64_t>(op.number_1, "number"),
                      Whole<float>(op.gradient_P, "gradient"), Whole<Momentum>(op.momentum_P, "momentum"),
                      Whole<Direction>(op.direction_P, "direction"), Whole<float>(op.step_5, "step"), settings, n);
      });
    });
  });
}

absl::Status Run(const DivideByNorm& op, Scratch scratch, StreamHandle stream) {
  const int64_t n = op.out_N.elements();
  if (n == 0) return absl::OkStatus();
  return WithMuonType(op.out_N.dtype, [&](auto element) {
    using T = decltype(element);
    return WithWidth<kMuonPack>(Aligned16(op.x_N) && Aligned16(op.out_N), [&](auto width) {
      return Launch("DivideByNorm", DivideByNormKernel<T, decltype(width)::value>, FlatShape(n), stream,
                    Whole<T>(op.x_N, "x"), Whole<double>(op.squares_1, "squares"), Whole<T>(op.out_N, "out"),
                    op.epsilon, n);
    });
  });
}

absl::Status Run(const MatrixPolynomial& op, Scratch scratch, StreamHandle stream) {
  const int64_t n = op.out_MM.elements();
  return WithMuonType(op.out_MM.dtype, [&](auto element) {
    using T = decltype(element);
    return WithWidth<kMuonPack>(Aligned16(op.x_MM) && Aligned16(op.y_MM) && Aligned16(op.out_MM), [&](auto width) {
      return Launch("MatrixPolynomial", MatrixPolynomialKernel<T, decltype(width)::value>, FlatShape(n), stream,
                    Whole<T>(op.x_MM, "x"), Whole<T>(op.y_MM, "y"), Whole<T>(op.out_MM, "out"), op.a, op.b, op.c,
                    op.out_MM.dim(0) + 1, n);
    });
  });
}

}  // namespace shale::cuda
