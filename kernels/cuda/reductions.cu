// Sums, and sums of squares, of flat vectors in fp64.
//
// There are two steps, which are bound by memory. Each block of the first step sums kReductionChunk elements into a
// partial sum in scratch. The single block of the second step adds the partial sums. The order of additions depends on
// the number of elements alone. It does not depend on the machine, nor on the alignment of x, which only decides
// whether four elements are loaded at once.
#include "kernels/check.h"
#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/work_division.h"
#include "kernels/integers.h"
#include "kernels/ops/flat.h"
#include "kernels/step_scalars.h"

namespace shale::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = kPackOf<float>;  // Also of bf16, so that its order of additions is the same.
constexpr int kInFlight = 8;           // Packs that a thread requests before it adds them.
constexpr int kPacksPerThread = 16;
static_assert(kReductionChunk == kThreads * kPacksPerThread * kPack);
// Threads of the single block of the second step.
constexpr int kTotalThreads = 1024;

// Loads four elements, with zeros from element n on: they do not change the sum.
template <bool kAligned, class T>
SHALE_DEVICE Pack<T, kPack> LoadFour(const Global<T>& x, int64_t i, int64_t n) {
  if constexpr (kAligned) {
    if (i + kPack <= n) return x.template Load<kPack>(i);
  }
  Pack<T, kPack> pack;
  for (int k = 0; k < kPack; ++k) pack.at[k] = i + k < n ? x.Load(i + k) : Narrow<T>(0.0f);
  return pack;
}

// Does the first step. Sums in fp64, in which the square of an fp32 number is exact.
template <bool kSquares, bool kAligned, class T>
SHALE_KERNEL SHALE_BOUNDS(kThreads) PartialSumsKernel(Global<T> x, Global<double> partials, int64_t n) {
  const int64_t begin = blockIdx.x * kReductionChunk + threadIdx.x * kPack;
  double sum = 0;
  for (int step = 0; step < kPacksPerThread; step += kInFlight) {
    Pack<T, kPack> packs[kInFlight];
    for (int k = 0; k < kInFlight; ++k) {
      packs[k] = LoadFour<kAligned>(x, begin + static_cast<int64_t>(step + k) * (kThreads * kPack), n);
    }
    for (int k = 0; k < kInFlight; ++k) {
      for (int e = 0; e < kPack; ++e) {
        const double value = Widen(packs[k].at[e]);
        sum += kSquares ? value * value : value;
      }
    }
  }
  sum = SumOverBlock<kThreads>(sum);
  if (threadIdx.x == 0) partials.Store(blockIdx.x, sum);
}

SHALE_KERNEL SHALE_BOUNDS(kTotalThreads)
    TotalKernel(Global<double> partials, int64_t count, Global<double> total, bool accumulate) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kTotalThreads) sum += partials.Load(i);
  sum = SumOverBlock<kTotalThreads>(sum);
  if (threadIdx.x == 0) total.Store(0, accumulate ? total.Load(0) + sum : sum);
}

template <bool kSquares, class OpType>
absl::Status RunSum(const char* name, const OpType& op, Scratch scratch, StreamHandle stream) {
  const int64_t n = op.x_N.elements(), chunks = CeilDivide(n, kReductionChunk);
  const Global<double> partials(reinterpret_cast<double*>(scratch.data), chunks, "partials");
  if (chunks > 0) {
    SHALE_RETURN_IF_ERROR(WithElement(op.x_N.dtype, [&](auto element) {
      using T = decltype(element);
      const auto kernel =
          Aligned16(op.x_N) ? PartialSumsKernel<kSquares, true, T> : PartialSumsKernel<kSquares, false, T>;
      return Launch(name, kernel, {.grid = dim3(static_cast<unsigned>(chunks)), .block = dim3(kThreads)}, stream,
                    Whole<T>(op.x_N, "x"), partials, n);
    }));
  }
  return Launch(name, TotalKernel, {.grid = dim3(1), .block = dim3(kTotalThreads)}, stream, partials, chunks,
                Whole<double>(op.total_1, "total"), op.accumulate);
}

}  // namespace

absl::Status Run(const Sum& op, Scratch scratch, StreamHandle stream) {
  return RunSum<false>("Sum", op, scratch, stream);
}

absl::Status Run(const SumSquares& op, Scratch scratch, StreamHandle stream) {
  return RunSum<true>("SumSquares", op, scratch, stream);
}

}  // namespace shale::cuda
