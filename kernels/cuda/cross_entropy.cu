// Cross-entropy and its gradient, in place.
//
// A block owns a row, and reads it twice: once for its largest logit and the sum of exponentials (online, after
// Milakov and Gimelshein, 2018), and once more, mostly from the L2 cache, for the gradient, which it writes over it.
// Rows that begin at 16-byte addresses and fill whole packs go in packs of 16 bytes, four of which a thread asks for
// before it waits; others element by element. A thread's sum is fp32, from there on sums are fp64. What a thread owns
// and the order of its sum depend on V and on whether rows go in packs.
//
// A target at or past V is no address: the loss of its row and, when asked for, all of its gradient are NaN.
#include "kernels/cuda/portable.h"

#include <limits>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"

namespace shale::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpThreads;
static_assert(kWarps <= kWarpThreads);
constexpr int kInFlight = 4;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What an exponent is taken relative to. Where nothing but -infinity was seen, that is 0: e^(-infinity - 0) is 0.
SHALE_DEVICE float ShiftOf(float largest) { return largest == -kInfinity ? 0.0f : largest; }

// The largest of some logits, NaNs aside, and the sum of e^(x - largest), into which a NaN goes.
struct Running {
  float largest = -kInfinity;
  float sum = 0;
};

template <class T, int N, int kPacks>
SHALE_DEVICE void Take(const Pack<T, N> (&packs)[kPacks], Running& running) {
  float largest = running.largest;
  SHALE_UNROLL for (int k = 0; k < kPacks; ++k) {
    SHALE_UNROLL for (int i = 0; i < N; ++i) largest = fmaxf(largest, Widen(packs[k].at[i]));
  }
  const float shift = ShiftOf(largest);
  if (largest > running.largest) {
    running.sum *= expf(running.largest - shift);
    running.largest = largest;
  }
  SHALE_UNROLL for (int k = 0; k < kPacks; ++k) {
    SHALE_UNROLL for (int i = 0; i < N; ++i) running.sum += expf(Widen(packs[k].at[i]) - shift);
  }
}

// Calls many(pack) for packs `pack`, `pack` + kThreads, ... (kInFlight of them) of this thread, and one(pack) for each that
// remains.
template <class Many, class One>
SHALE_DEVICE void ForEachPack(int64_t packs, const Many& many, const One& one) {
  int64_t pack = threadIdx.x;
  for (; pack + (kInFlight - 1) * kThreads < packs; pack += kInFlight * kThreads) many(pack);
  for (; pack < packs; pack += kThreads) one(pack);
}

// Of a row, or of a warp's part.
struct Total {
  float largest;
  double sum;
};

// Over the lanes of a warp, the same bits in each.
SHALE_DEVICE Total OverWarp(float largest, double sum) {
  Total total = {.largest = largest};
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    total.largest = fmaxf(total.largest, __shfl_xor_sync(kAllLanes, total.largest, lanes));
  }
  total.sum = sum * expf(largest - ShiftOf(total.largest));
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) total.sum += __shfl_xor_sync(kAllLanes, total.sum, lanes);
  return total;
}

template <class T, int N>
SHALE_KERNEL SHALE_BOUNDS(kThreads, 2)
    CrossEntropyKernel(Global<T> logits_TV, Global<int> targets_T, int64_t target_stride, Global<float> scale_1,
                       Global<float> loss_T, int64_t V, bool gradient) {
  const int64_t row = blockIdx.x, begin = row * V, packs = V / N;
  const int target = targets_T.Load(row * target_stride);
  if (target < 0) {
    if (threadIdx.x == 0) loss_T.Store(row, 0.0f);
    Pack<T, N> zeros;
    for (int i = 0; i < N; ++i) zeros.at[i] = Narrow<T>(0.0f);
    for (int64_t pack = threadIdx.x; gradient && pack < packs; pack += kThreads) {
      logits_TV.template Store<N>(begin + pack * N, zeros);
    }
    return;
  }

  Running running;
  ForEachPack(
      packs,
      [&](int64_t pack) {
        Pack<T, N> several[kInFlight];
        for (int k = 0; k < kInFlight; ++k) {
          several[k] = logits_TV.template Load<N>(begin + (pack + k * kThreads) * N);
        }
        Take(several, running);
      },
      [&](int64_t pack) {
        const Pack<T, N> single[1] = {logits_TV.template Load<N>(begin + pack * N)};
        Take(single, running);
      });

  SHALE_SHARED_ARRAY(float, largest_of_warp, kWarps);
  SHALE_SHARED_ARRAY(double, sum_of_warp, kWarps);
  SHALE_SHARED_ARRAY(float, row_numbers, 3);
  const int warp = threadIdx.x / kWarpThreads, lane = threadIdx.x % kWarpThreads;
  const Total own = OverWarp(running.largest, running.sum);
  if (lane == 0) {
    largest_of_warp.Store(warp, own.largest);
    sum_of_warp.Store(warp, own.sum);
  }
  __syncthreads();
  if (warp == 0) {
    const bool some = lane < kWarps;
    const Total total = OverWarp(some ? largest_of_warp.Load(lane) : -kInfinity, some ? sum_of_warp.Load(lane) : 0.0);
    if (lane == 0) {
      const bool known = target < V;
      const double at_target = known ? Widen(logits_TV.Load(begin + target)) : std::numeric_limits<float>::quiet_NaN();
      const double below = at_target - total.largest;
      loss_T.Store(row, static_cast<float>(log(total.sum) - below));
      if (gradient) {
        const double scale = scale_1.Load(0);
        row_numbers.Store(0, total.largest);
        row_numbers.Store(1, known ? static_cast<float>(scale / total.sum) : std::numeric_limits<float>::quiet_NaN());
        // p - 1 in fp64: it vanishes as the model learns.
        row_numbers.Store(2, static_cast<float>((exp(below) / total.sum - 1) * scale));
      }
    }
  }
  if (!gradient) return;
  __syncthreads();

  const float largest = row_numbers.Load(0), factor = row_numbers.Load(1), d_target = row_numbers.Load(2);
  const auto put = [&](int64_t pack, Pack<T, N> x) {
    const int64_t from_target = target - pack * N;
    SHALE_UNROLL for (int i = 0; i < N; ++i) {
      x.at[i] = Narrow<T>(i == from_target ? d_target : expf(Widen(x.at[i]) - largest) * factor);
    }
    logits_TV.template Store<N>(begin + pack * N, x);
  };
  ForEachPack(
      packs,
      [&](int64_t pack) {
        Pack<T, N> several[kInFlight];
        for (int k = 0; k < kInFlight; ++k) {
          several[k] = logits_TV.template Load<N>(begin + (pack + k * kThreads) * N);
        }
        for (int k = 0; k < kInFlight; ++k) put(pack + k * kThreads, several[k]);
      },
      [&](int64_t pack) { put(pack, logits_TV.template Load<N>(begin + pack * N)); });
}

template <class T, int N>
absl::Status Start(const CrossEntropy& op, StreamHandle stream) {
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(op.logits_TV.dim(0))), .block = dim3(kThreads)};
  return Launch("CrossEntropy", CrossEntropyKernel<T, N>, shape, stream, Whole<T>(op.logits_TV, "logits"),
                Whole<int>(op.targets_T, "targets"), op.targets_T.stride(0), Whole<float>(op.scale_1, "scale"),
                Whole<float>(op.loss_T, "loss"), op.logits_TV.dim(1), op.gradient);
}

}  // namespace

absl::Status Run(const CrossEntropy& op, Scratch scratch, StreamHandle stream) {
  return WithElement(op.logits_TV.dtype, [&](auto element) {
    using T = decltype(element);
    const bool packs = RowsAligned(op.logits_TV) && op.logits_TV.dim(1) % kPackOf<T> == 0;
    return packs ? Start<T, kPackOf<T>>(op, stream) : Start<T, 1>(op, stream);
  });
}

}  // namespace shale::cuda
