// Rotary position embedding.
//
// The first kernel computes a table of cosines and sines in scratch, [S, D/2] each, from angles in fp64. If sequences
// begin at positions of their own, the table has a row for every token instead, [B * S, D/2]. The second
// kernel makes one pass over x in place and is bound by memory. It reads the 4 S D bytes of the table once for every
// kHeadsPerThread heads of each sequence. A thread owns a pack of pairs (one pack from each half of a head) at one
// position, keeps its cosines and sines in registers, and rotates kHeadsPerThread heads by them, two at a time.
#include <algorithm>
#include <numbers>

#include "kernels/check.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/rope_table.h"
#include "kernels/integers.h"
#include "kernels/ops/rope.h"
#include "kernels/reference/rope_frequency.h"

namespace shale::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHeadsPerThread = 8;
constexpr int kHeadsInFlight = 2;

// Pairs per launch of the table kernel. Their frequencies are parameters of the launch; the host computes them with the
// function that all backends use.
constexpr int kPairsPerLaunch = 64;
struct Frequencies {
  double at[kPairsPerLaunch];  // Half turns per position.
};

SHALE_KERNEL SHALE_BOUNDS(kThreads)
    RopeTableKernel(Frequencies frequencies, int64_t first_pair, int pairs, Global<float> cosines, Global<float> sines,
                    Global<int32_t> begins, int64_t rows, int64_t S, int64_t half) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = Quotient(index, pairs), pair = index - row * pairs;
  if (row >= rows) return;
  const int64_t b = Quotient(row, S), position = row - b * S + BeginOf(begins, b);
  double sine, cosine;
  sincospi(static_cast<double>(position) * frequencies.at[pair], &sine, &cosine);
  cosines.Store(row * half + first_pair + pair, static_cast<float>(cosine));
  sines.Store(row * half + first_pair + pair, static_cast<float>(sine));
}

// The tensor x [B, S, H, D]. Its strides are in elements.
template <class T>
struct Heads {
  Global<T> at;
  int64_t B, S, H, half, b_stride, s_stride, h_stride;
};

template <class T, int N>
SHALE_KERNEL SHALE_BOUNDS(kThreads, 8) RopeKernel(Heads<T> x, Global<int32_t> position_ids, bool row_per_token,
                                                  Global<float> cosines, Global<float> sines) {
  const int64_t packs = x.half / N, index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t t = Quotient(index, packs), i = (index - t * packs) * N;
  if (t >= x.B * x.S) return;
  const int64_t b = Quotient(t, x.S), s = t - b * x.S;
  const int64_t row = row_per_token ? t : PositionOf(position_ids, t, s);
  const Floats<N> cosine = LoadFloats<N>(cosines, row * x.half + i);
  const Floats<N> sine = LoadFloats<N>(sines, row * x.half + i);
  const int64_t begin = b * x.b_stride + s * x.s_stride + i;
  const int64_t first_head = static_cast<int64_t>(blockIdx.y) * kHeadsPerThread;
  const int64_t last_head = first_head + kHeadsPerThread < x.H ? first_head + kHeadsPerThread : x.H;
  for (int64_t head = first_head; head < last_head; head += kHeadsInFlight) {
    Pack<T, N> first[kHeadsInFlight], second[kHeadsInFlight];
    SHALE_UNROLL
    for (int k = 0; k < kHeadsInFlight; ++k) {
      if (head + k >= last_head) continue;
      first[k] = x.at.template Load<N>(begin + (head + k) * x.h_stride);
      second[k] = x.at.template Load<N>(begin + (head + k) * x.h_stride + x.half);
    }
    SHALE_UNROLL
    for (int k = 0; k < kHeadsInFlight; ++k) {
      if (head + k >= last_head) continue;
      SHALE_UNROLL
      for (int e = 0; e < N; ++e) {
        const float a = Widen(first[k].at[e]), c = Widen(second[k].at[e]);
        first[k].at[e] = Narrow<T>(a * cosine.at[e] - c * sine.at[e]);
        second[k].at[e] = Narrow<T>(c * cosine.at[e] + a * sine.at[e]);
      }
      x.at.Store(begin + (head + k) * x.h_stride, first[k]);
      x.at.Store(begin + (head + k) * x.h_stride + x.half, second[k]);
    }
  }
}

}  // namespace

absl::Status FillRopeTable(const Rope& op, const RopeTable& table, StreamHandle stream) {
  const int64_t rows = RopeTableRows(op), D = op.x_BSHD.dim(3), half = D / 2;
  for (int64_t first = 0; first < half; first += kPairsPerLaunch) {
    const int64_t pairs = std::min<int64_t>(kPairsPerLaunch, half - first);
    Frequencies frequencies = {};
    for (int64_t i = 0; i < pairs; ++i) {
      const double turn = RopeFrequency(op.theta, op.scaling, first + i, D) * std::numbers::inv_pi;
      frequencies.at[i] = op.inverse ? -turn : turn;
    }
    const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(CeilDivide(rows * pairs, kThreads))),
                               .block = dim3(kThreads)};
    SHALE_RETURN_IF_ERROR(Launch("Rope", RopeTableKernel, shape, stream, frequencies, first, static_cast<int>(pairs),
                                 table.cosines, table.sines, Whole<int32_t>(op.begins_B, "begins"), rows,
                                 op.x_BSHD.dim(1), half));
  }
  return absl::OkStatus();
}

absl::Status Run(const Rope& op, Scratch scratch, StreamHandle stream) {
  const Tensor& x = op.x_BSHD;
  const int64_t half = x.dim(3) / 2;
  const RopeTable table = RopeTable::In(scratch, op);
  SHALE_RETURN_IF_ERROR(FillRopeTable(op, table, stream));
  return WithElement(x.dtype, [&](auto element) {
    using T = decltype(element);
    const Heads<T> heads = {Whole<T>(x, "x"), x.dim(0),    x.dim(1),   x.dim(2), half,
                            x.stride(0),      x.stride(1), x.stride(2)};
    return WithWidth<kPackOf<T>>(RowsAligned(x) && half % kPackOf<T> == 0, [&](auto width) {
      constexpr int N = decltype(width)::value;
      const int64_t threads = heads.B * heads.S * (half / N);
      const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(CeilDivide(threads, kThreads)),
                                              static_cast<unsigned>(CeilDivide(heads.H, kHeadsPerThread))),
                                 .block = dim3(kThreads)};
      return Launch("Rope", RopeKernel<T, N>, shape, stream, heads, Whole<int32_t>(op.position_ids_BS, "position_ids"),
                    op.begins_B.present(), table.cosines, table.sines);
    });
  });
}

}  // namespace shale::cuda
