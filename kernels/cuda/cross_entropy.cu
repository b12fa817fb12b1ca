// Cross-entropy and its gradient, in place.
//
// A block owns a row. It reads it once, for its largest logit and the sum of exponentials (online, after Milakov and
// Gimelshein, 2018), and keeps what it read in registers and shared memory, as far as the row fits; then it overwrites
// the logits with the gradient. An SM of an H100 or H200 keeps 147,456 logits in bf16: one row, or two of up to half as
// many, one of which loads while the other stores. What does not fit is read again, last packs first, because the L2
// cache most likely holds what was read last.
//
// Packs of 16 bytes are counted from the start of the matrix, so that they are aligned whatever V is; a thread requests
// four of them before it waits. If a row shares a pack with the row before or after it, the row's elements of that pack
// go one by one. (All elements of a matrix that does not begin at a 16-byte address go one by one, in the same order.)
// Each thread sums in fp32; these sums are added in fp64. The order of sums depends on V alone, not on what is kept.
//
// e^(x - m) is computed as 2^((x - m) c), where c is log2(e) in fp32: the GPU has an instruction for powers of two,
// which errs by two units in the last place and gives exactly 1 for the largest logit. So what a row's other logits add
// to 1 is not lost where the model is sure. The product errs by 1.2 units of (x - m), beside one of the difference.
//
// A target at or past V is never used as an address: the loss of its row, and the row's gradient if requested, are NaN.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/check.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/softmax.h"
#include "kernels/cuda/work_division.h"
#include "kernels/integers.h"
#include "kernels/ops/loss.h"

namespace shale::cuda {
namespace {

constexpr int kInFlight = 4;
constexpr int kKeptPacks = 18;  // Packs that a thread of an H200 keeps.

SHALE_DEVICE float ExpOf(float x) { return Exp2(x * kLog2E); }

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

// Takes one pack at a time, so that few elements are in fp32 registers at once. The largest logit ignores NaNs, and any
// NaN turns the sum into NaN.
template <class Cap, class T, int N>
SHALE_DEVICE void Take(const Cap& cap, const Pack<T, N>& pack, RunningSoftmax& running) {
  float largest = running.largest;
  SHALE_UNROLL for (int i = 0; i < N; ++i) largest = fmaxf(largest, cap.Of(Widen(pack.at[i])));
  const float shift = ShiftOf(largest);
  if (largest > running.largest) {
    running.sum *= ExpOf(running.largest - shift);
    running.largest = largest;
  }
  SHALE_UNROLL for (int i = 0; i < N; ++i) running.sum += ExpOf(cap.Of(Widen(pack.at[i])) - shift);
}

// The elements of one row, by their columns.
template <int N, int kThreads>
struct Row {
  int64_t begin;
  int first_pack, packs;  // `packs` packs from column first_pack on, none of them shared with another row.
  int edges;              // Elements before and after these packs.

  SHALE_DEVICE Row(int64_t row, int64_t V) : begin(row * V) {
    const int64_t first = (begin + N - 1) / N, last = (begin + V) / N;
    packs = last > first ? static_cast<int>(last - first) : 0;
    first_pack = static_cast<int>(first * N < begin + V ? first * N - begin : V);
    edges = static_cast<int>(V - static_cast<int64_t>(packs) * N);
  }

  // Returns how many packs the calling thread owns, and the column of its k-th one.
  SHALE_DEVICE int Owned() const { return (packs - static_cast<int>(threadIdx.x) + kThreads - 1) / kThreads; }
  SHALE_DEVICE int At(int k) const { return first_pack + (k * kThreads + static_cast<int>(threadIdx.x)) * N; }
  // Returns whether the calling thread owns an element at an edge, and its column.
  SHALE_DEVICE bool HasEdge() const { return static_cast<int>(threadIdx.x) < edges; }
  SHALE_DEVICE int Edge() const {
    const int before = static_cast<int>(threadIdx.x);
    return before < first_pack ? before : before + packs * N;
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
  total.sum = sum * ExpOf(largest - ShiftOf(total.largest));
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) total.sum += __shfl_xor_sync(kAllLanes, total.sum, lanes);
  return total;
}

// Packs that a thread keeps in registers. Single elements and caps leave no registers for them.
template <bool kAligned, class Cap>
constexpr int kRegisterPacks = kAligned&& std::is_same_v<Cap, Uncapped> ? kInFlight : 0;

// The packs of a row that the calling thread keeps: of those that it owns, the first `kept`.
template <class T, bool kAligned, int kThreads, class Cap>
struct Kept {
  static constexpr int N = kPackOf<T>, kInRegisters = kRegisterPacks<kAligned, Cap>;
  Pack<T, N> in_registers[kInFlight];
  int kept;

  // Returns the element of dynamic shared memory where pack k begins.
  SHALE_DEVICE static int Slot(int k) { return ((k - kInRegisters) * kThreads + static_cast<int>(threadIdx.x)) * N; }
};

// Reads the calling thread's part of a row and keeps of it what `kept` says.
template <bool kAligned, class T, int kThreads, class Cap>
SHALE_DEVICE RunningSoftmax ReadRow(const Row<kPackOf<T>, kThreads>& row, const Global<T>& logits_TV, const Cap& cap,
                                    const Shared<T>& chip, Kept<T, kAligned, kThreads, Cap>& kept) {
  constexpr int N = kPackOf<T>, kInRegisters = kRegisterPacks<kAligned, Cap>;
  RunningSoftmax running;
  const auto load = [&](int k) { return LoadPack<kAligned, N>(logits_TV, row.begin + row.At(k)); };
  const auto keep = [&](int k, const Pack<T, N>& pack) {
    if (k < kept.kept) chip.Store(kept.Slot(k), pack);
  };
  const int owned = row.Owned();
  int k = 0;
  if (owned < kInRegisters) kept.kept = 0;
  if (kInRegisters > 0 && owned >= kInRegisters) {
    SHALE_UNROLL for (int j = 0; j < kInFlight; ++j) kept.in_registers[j] = load(j);
    SHALE_UNROLL for (int j = 0; j < kInFlight; ++j) Take(cap, kept.in_registers[j], running);
    k = kInFlight;
  }
  for (; k + kInFlight <= owned; k += kInFlight) {
    Pack<T, N> packs[kInFlight];
    SHALE_UNROLL for (int j = 0; j < kInFlight; ++j) packs[j] = load(k + j);
    SHALE_UNROLL for (int j = 0; j < kInFlight; ++j) keep(k + j, packs[j]);
    SHALE_UNROLL for (int j = 0; j < kInFlight; ++j) Take(cap, packs[j], running);
  }
  for (; k < owned; ++k) {
    const Pack<T, N> pack = load(k);
    keep(k, pack);
    Take(cap, pack, running);
  }
  if (row.HasEdge()) Take(cap, Pack<T, 1>{{logits_TV.Load(row.begin + row.Edge())}}, running);
  return running;
}

// Of the gradient of a row: p is e^(x - largest) times `factor`, and `d_target` is the element of the target.
struct RowNumbers {
  float largest, factor, d_target;
};

// Overwrites the calling thread's part of a row with its gradient.
template <bool kAligned, class T, int kThreads, class Cap>
SHALE_DEVICE void WriteGradient(const Row<kPackOf<T>, kThreads>& row, const Global<T>& logits_TV, const Cap& cap,
                                const Shared<T>& chip, const Kept<T, kAligned, kThreads, Cap>& kept, int target,
                                const RowNumbers& numbers) {
  constexpr int N = kPackOf<T>, kInRegisters = kRegisterPacks<kAligned, Cap>;
  const auto gradient_of = [&](T x, int column) {
    const float logit = cap.Of(Widen(x));
    const float p = ExpOf(logit - numbers.largest) * numbers.factor;
    return Narrow<T>(column == target ? numbers.d_target : p * cap.Slope(logit));
  };
  const auto load = [&](int k) { return LoadPack<kAligned, N>(logits_TV, row.begin + row.At(k)); };
  const auto put = [&](Pack<T, N> x, int k) {
    const int at = row.At(k);
    SHALE_UNROLL for (int i = 0; i < N; ++i) x.at[i] = gradient_of(x.at[i], at + i);
    StorePack<kAligned, N>(logits_TV, row.begin + at, x);
  };
  int k = row.Owned();
  for (; k - kInFlight >= kept.kept; k -= kInFlight) {
    Pack<T, N> packs[kInFlight];
    SHALE_UNROLL for (int j = 0; j < kInFlight; ++j) packs[j] = load(k - 1 - j);
    SHALE_UNROLL for (int j = 0; j < kInFlight; ++j) put(packs[j], k - 1 - j);
  }
  for (; k > kept.kept; --k) put(load(k - 1), k - 1);
  for (; k > kInRegisters; --k) put(chip.template Load<N>(kept.Slot(k - 1)), k - 1);
  if (kInRegisters > 0 && k > 0) {
    SHALE_UNROLL for (int j = 0; j < kInFlight; ++j) put(kept.in_registers[j], j);
  }
  if (row.HasEdge()) {
    const int64_t edge = row.begin + row.Edge();
    logits_TV.Store(edge, gradient_of(logits_TV.Load(edge), row.Edge()));
  }
}

// Overwrites the calling thread's part of a row that has no gradient.
template <bool kAligned, class T, int kThreads>
SHALE_DEVICE void WriteZeros(const Row<kPackOf<T>, kThreads>& row, const Global<T>& logits_TV) {
  constexpr int N = kPackOf<T>;
  Pack<T, N> zeros;
  for (int k = 0; k < N; ++k) zeros.at[k] = Narrow<T>(0.0f);
  for (int k = 0, owned = row.Owned(); k < owned; ++k) {
    StorePack<kAligned, N>(logits_TV, row.begin + row.At(k), zeros);
  }
  if (row.HasEdge()) logits_TV.Store(row.begin + row.Edge(), zeros.at[0]);
}

template <class T, bool kAligned, int kThreads, class Cap>
SHALE_KERNEL SHALE_BOUNDS(kThreads, 1024 / kThreads)
    CrossEntropyKernel(Global<T> logits_TV, Global<int> targets_T, int64_t target_stride, Global<float> weights_T,
                       int64_t weight_stride, Global<float> scale_1, Global<float> loss_T, int64_t V, bool gradient,
                       int kept_packs, Cap cap) {
  constexpr int kWarps = kThreads / kWarpThreads;
  static_assert(kWarps <= kWarpThreads);
  const int64_t t = blockIdx.x;
  const Row<kPackOf<T>, kThreads> row(t, V);
  const int target = targets_T.Load(t * target_stride);
  const float weight = weights_T.present() ? weights_T.Load(t * weight_stride) : 1.0f;
  if (target < 0 || weight == 0) {
    if (threadIdx.x == 0) loss_T.Store(t, 0.0f);
    if (gradient) WriteZeros<kAligned>(row, logits_TV);
    return;
  }

  SHALE_DYNAMIC_SHARED(T, chip);
  Kept<T, kAligned, kThreads, Cap> kept;
  kept.kept = gradient ? kept_packs : 0;
  const RunningSoftmax running = ReadRow<kAligned>(row, logits_TV, cap, chip, kept);

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

  WriteGradient<kAligned>(row, logits_TV, cap, chip, kept, target,
                          {row_numbers.Load(0), row_numbers.Load(1), row_numbers.Load(2)});
}

// Returns how many packs a thread keeps in shared memory where rows have so many packs, and blocks so many threads.
template <bool kAligned, class Cap>
int64_t SharedPacksOf(int64_t row_packs, int threads, int64_t sm_shared_bytes) {
  // CUDA takes a KiB of each block, and static arrays less than another.
  const int64_t block_bytes = sm_shared_bytes / (1024 / threads) - 2048;
  const int64_t wanted = CeilDivide(row_packs, threads) - kRegisterPacks<kAligned, Cap>;
  return std::max<int64_t>(0, std::min(wanted, block_bytes / (threads * kPackBytes)));
}

template <class T, bool kAligned, int kThreads, class Cap>
absl::Status StartLoss(const CrossEntropy& op, Cap cap, int64_t sm_shared_bytes, StreamHandle stream) {
  const int64_t row_packs = CeilDivide(op.logits_TV.dim(1), kPackOf<T>);
  const int64_t packs = op.gradient ? SharedPacksOf<kAligned, Cap>(row_packs, kThreads, sm_shared_bytes) : 0;
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(op.logits_TV.dim(0))),
                             .block = dim3(kThreads),
                             .shared_bytes = static_cast<size_t>(packs * kThreads * kPackBytes)};
  return Launch("CrossEntropy", CrossEntropyKernel<T, kAligned, kThreads, Cap>, shape, stream,
                Whole<T>(op.logits_TV, "logits"), Whole<int>(op.targets_T, "targets"), op.targets_T.stride(0),
                Whole<float>(op.weights_T, "weights"), op.weights_T.present() ? op.weights_T.stride(0) : 0,
                Whole<float>(op.scale_1, "scale"), Whole<float>(op.loss_T, "loss"), op.logits_TV.dim(1), op.gradient,
                static_cast<int>(kRegisterPacks<kAligned, Cap> + packs), cap);
}

}  // namespace

absl::Status Run(const CrossEntropy& op, Scratch scratch, StreamHandle stream) {
  int64_t sm_shared_bytes = 0;
  SHALE_RETURN_IF_ERROR(GetSharedBytesOfSm(stream, sm_shared_bytes));
  return WithElement(op.logits_TV.dtype, [&](auto element) {
    using T = decltype(element);
    const auto start = [&](auto cap) {
      // Two blocks of an SM alternate, if each keeps its row.
      const bool two = op.logits_TV.dim(1) <= kKeptPacks * 512 * kPackOf<T>;
      if (Aligned16(op.logits_TV)) {
        return two ? StartLoss<T, true, 512>(op, cap, sm_shared_bytes, stream)
                   : StartLoss<T, true, 1024>(op, cap, sm_shared_bytes, stream);
      }
      return two ? StartLoss<T, false, 512>(op, cap, sm_shared_bytes, stream)
                 : StartLoss<T, false, 1024>(op, cap, sm_shared_bytes, stream);
    };
    return op.cap > 0 ? start(Capped(op.cap)) : start(Uncapped(op.cap));
  });
}

}  // namespace shale::cuda
