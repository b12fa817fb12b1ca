// Cross-entropy and its gradient, in place.
//
// A block owns a row and reads it twice: once for its largest logit and the sum of exponentials (online, after Milakov
// and Gimelshein, 2018), and once more, mostly from the L2 cache, for the gradient, which overwrites the logits. Packs
// of 16 bytes are counted from the start of the matrix, so that they are aligned whatever V is; a thread requests four
// of them before it waits. If a row shares a pack with the row before or after it, the row's elements of that pack go
// one by one. (All elements of a matrix that does not begin at a 16-byte address go one by one, in the same order.)
// Each thread sums in fp32; these sums are added in fp64.
//
// A target at or past V is never used as an address: the loss of its row, and the row's gradient if requested, are NaN.
#include <limits>

#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/softmax.h"
#include "kernels/ops/loss.h"

namespace shale::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpThreads;
static_assert(kWarps <= kWarpThreads);
constexpr int kInFlight = 4;

// The largest of the logits so far, ignoring NaNs, and the sum of e^(x - largest), which any NaN turns into NaN.
struct Running {
  float largest = -kInfinity;
  float sum = 0;
};

// What the loss takes in the place of a logit.
struct Uncapped {
  explicit Uncapped(float cap) {}
  SHALE_DEVICE float Of(float logit) const { return logit; }
  // Returns the derivative, given Of(logit).
  SHALE_DEVICE float Slope(float x) const { return 1.0f; }
};
struct Capped {
  float cap;
  explicit Capped(float cap) : cap(cap) {}
  SHALE_DEVICE float Of(float logit) const { return cap * tanhf(logit / cap); }
  SHALE_DEVICE float Slope(float x) const { return fmaf(-x / cap, x / cap, 1.0f); }
};

template <class Cap, class T, int N, int kPacks>
SHALE_DEVICE void Take(const Cap& cap, const Pack<T, N> (&packs)[kPacks], Running& running) {
  float largest = running.largest;
  SHALE_UNROLL for (int k = 0; k < kPacks; ++k) {
    SHALE_UNROLL for (int i = 0; i < N; ++i) largest = fmaxf(largest, cap.Of(Widen(packs[k].at[i])));
  }
  const float shift = ShiftOf(largest);
  if (largest > running.largest) {
    running.sum *= expf(running.largest - shift);
    running.largest = largest;
  }
  SHALE_UNROLL for (int k = 0; k < kPacks; ++k) {
    SHALE_UNROLL for (int i = 0; i < N; ++i) running.sum += expf(cap.Of(Widen(packs[k].at[i])) - shift);
  }
}

// The elements of one row, as offsets in the matrix.
template <int N>
struct Row {
  int64_t begin, end;
  int64_t first_pack, packs;  // `packs` packs from element first_pack on, none of them shared with another row.
  int edges;                  // Elements before and after these packs.

  SHALE_DEVICE Row(int64_t row, int64_t V) : begin(row * V), end(begin + V) {
    const int64_t first = (begin + N - 1) / N, last = end / N;
    packs = last > first ? last - first : 0;
    first_pack = first * N < end ? first * N : end;
    edges = static_cast<int>(V - packs * N);
  }

  // Returns the offset of the i-th of the `edges` elements.
  SHALE_DEVICE int64_t Edge(int i) const {
    const int64_t before = begin + i;
    return before < first_pack ? before : before + packs * N;
  }
  // Returns the offset of the mirror image of the pack at offset i: of the last pack for the first, and so on.
  SHALE_DEVICE int64_t Mirrored(int64_t i) const { return 2 * first_pack + (packs - 1) * N - i; }

  // Calls several(i) for every kInFlight packs of this thread (they begin at i, i + kThreads N, ...), single(i) for
  // each pack that remains, and edge(i) for this thread's edge element, if any.
  template <class Several, class Single, class EdgeElement>
  SHALE_DEVICE void ForEachPiece(const Several& several, const Single& single, const EdgeElement& edge) const {
    int64_t pack = threadIdx.x;
    for (; pack + (kInFlight - 1) * kThreads < packs; pack += kInFlight * kThreads) several(first_pack + pack * N);
    for (; pack < packs; pack += kThreads) single(first_pack + pack * N);
    if (static_cast<int>(threadIdx.x) < edges) edge(Edge(threadIdx.x));
  }
};

template <bool kAligned, int N, class T>
SHALE_DEVICE Pack<T, N> LoadPack(const Global<T>& from, int64_t i) {
  if constexpr (kAligned) {
    return from.template Load<N>(i);
  } else {
    Pack<T, N> pack;
    for (int k = 0; k < N; ++k) pack.at[k] = from.Load(i + k);
    return pack;
  }
}
template <bool kAligned, int N, class T>
SHALE_DEVICE void StorePack(const Global<T>& to, int64_t i, const Pack<T, N>& pack) {
  if constexpr (kAligned) {
    to.template Store<N>(i, pack);
  } else {
    for (int k = 0; k < N; ++k) to.Store(i + k, pack.at[k]);
  }
}

// The largest logit and the sum of exponentials of a row, or of one warp's part of it.
struct Total {
  float largest;
  double sum;
};

// Combines the largest logits and the sums of all lanes of a warp. Every lane gets the same bits.
SHALE_DEVICE Total OverWarp(float largest, double sum) {
  Total total = {.largest = largest};
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    total.largest = fmaxf(total.largest, __shfl_xor_sync(kAllLanes, total.largest, lanes));
  }
  total.sum = sum * expf(largest - ShiftOf(total.largest));
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) total.sum += __shfl_xor_sync(kAllLanes, total.sum, lanes);
  return total;
}

template <class T, bool kAligned, class Cap>
SHALE_KERNEL SHALE_BOUNDS(kThreads, 2)
    CrossEntropyKernel(Global<T> logits_TV, Global<int> targets_T, int64_t target_stride, Global<float> weights_T,
                       int64_t weight_stride, Global<float> scale_1, Global<float> loss_T, int64_t V, bool gradient,
                       Cap cap) {
  constexpr int N = kPackOf<T>;
  const int64_t t = blockIdx.x;
  const Row<N> row(t, V);
  const int target = targets_T.Load(t * target_stride);
  const float weight = weights_T.present() ? weights_T.Load(t * weight_stride) : 1.0f;
  if (target < 0 || weight == 0) {
    if (threadIdx.x == 0) loss_T.Store(t, 0.0f);
    if (!gradient) return;
    Pack<T, N> zeros;
    for (int k = 0; k < N; ++k) zeros.at[k] = Narrow<T>(0.0f);
    const auto zero = [&](int64_t i) { StorePack<kAligned, N>(logits_TV, i, zeros); };
    const auto zero_several = [&](int64_t i) {
      for (int k = 0; k < kInFlight; ++k) zero(i + k * (kThreads * N));
    };
    row.ForEachPiece(zero_several, zero, [&](int64_t i) { logits_TV.Store(i, zeros.at[0]); });
    return;
  }

  Running running;
  row.ForEachPiece(
      [&](int64_t i) {
        Pack<T, N> packs[kInFlight];
        for (int k = 0; k < kInFlight; ++k) packs[k] = LoadPack<kAligned, N>(logits_TV, i + k * (kThreads * N));
        Take(cap, packs, running);
      },
      [&](int64_t i) {
        const Pack<T, N> packs[1] = {LoadPack<kAligned, N>(logits_TV, i)};
        Take(cap, packs, running);
      },
      [&](int64_t i) {
        const Pack<T, 1> element[1] = {{logits_TV.Load(i)}};
        Take(cap, element, running);
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
      const double at_target =
          known ? cap.Of(Widen(logits_TV.Load(row.begin + target))) : std::numeric_limits<float>::quiet_NaN();
      const double below = at_target - total.largest;
      loss_T.Store(t, static_cast<float>(weight * (log(total.sum) - below)));
      if (gradient) {
        const double scale = static_cast<double>(weight) * scale_1.Load(0);
        row_numbers.Store(0, total.largest);
        row_numbers.Store(1, known ? static_cast<float>(scale / total.sum) : std::numeric_limits<float>::quiet_NaN());
        // p - 1 is computed in fp64, because it approaches 0 as the model learns.
        row_numbers.Store(
            2, static_cast<float>((exp(below) / total.sum - 1) * scale * cap.Slope(static_cast<float>(at_target))));
      }
    }
  }
  if (!gradient) return;
  __syncthreads();

  const float largest = row_numbers.Load(0), factor = row_numbers.Load(1), d_target = row_numbers.Load(2);
  const int64_t target_at = row.begin + target;
  const auto gradient_of = [&](T x, int64_t i) {
    const float logit = cap.Of(Widen(x));
    return Narrow<T>(i == target_at ? d_target : expf(logit - largest) * factor * cap.Slope(logit));
  };
  const auto put = [&](Pack<T, N> x, int64_t i) {
    SHALE_UNROLL for (int k = 0; k < N; ++k) x.at[k] = gradient_of(x.at[k], i + k);
    StorePack<kAligned, N>(logits_TV, i, x);
  };
  // Goes from the last pack to the first, because the cache most likely holds what was read last.
  row.ForEachPiece(
      [&](int64_t i) {
        const int64_t at = row.Mirrored(i);
        Pack<T, N> packs[kInFlight];
        for (int k = 0; k < kInFlight; ++k) packs[k] = LoadPack<kAligned, N>(logits_TV, at - k * (kThreads * N));
        for (int k = 0; k < kInFlight; ++k) put(packs[k], at - k * (kThreads * N));
      },
      [&](int64_t i) { put(LoadPack<kAligned, N>(logits_TV, row.Mirrored(i)), row.Mirrored(i)); },
      [&](int64_t i) { logits_TV.Store(i, gradient_of(logits_TV.Load(i), i)); });
}

}  // namespace

absl::Status Run(const CrossEntropy& op, Scratch scratch, StreamHandle stream) {
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(op.logits_TV.dim(0))), .block = dim3(kThreads)};
  return WithElement(op.logits_TV.dtype, [&](auto element) {
    using T = decltype(element);
    const auto start = [&](auto cap) {
      using Cap = decltype(cap);
      const auto kernel =
          Aligned16(op.logits_TV) ? CrossEntropyKernel<T, true, Cap> : CrossEntropyKernel<T, false, Cap>;
      return Launch("CrossEntropy", kernel, shape, stream, Whole<T>(op.logits_TV, "logits"),
                    Whole<int>(op.targets_T, "targets"), op.targets_T.stride(0), Whole<float>(op.weights_T, "weights"),
                    op.weights_T.present() ? op.weights_T.stride(0) : 0, Whole<float>(op.scale_1, "scale"),
                    Whole<float>(op.loss_T, "loss"), op.logits_TV.dim(1), op.gradient, cap);
    };
    return op.cap > 0 ? start(Capped(op.cap)) : start(Uncapped(op.cap));
  });
}

}  // namespace shale::cuda
