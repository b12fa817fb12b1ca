// Sets c[m, n] = bias[n]. If the library that computes a matmul does not take its bias, the matmul is added to this c.
//
// The kernel makes one pass over c and is bound by memory. A block owns kColumns columns of a row, and writes kPack
// elements at a time if rows begin at multiples of 16 bytes. The bias stays in the cache.
#include "kernels/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/integers.h"

namespace shale::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 4096;

template <class Bias, class T, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads) BroadcastBiasKernel(Global<Bias> bias, Rows<T> c, int64_t N, int64_t chunks) {
  constexpr int kPack = kPackOf<T>;
  const int64_t row = Quotient(blockIdx.x, chunks);
  const int64_t first = (blockIdx.x - row * chunks) * kColumns;
  const int64_t end = N - first < kColumns ? N : first + kColumns;
  for (int64_t n = first + threadIdx.x * kPack; n < end; n += kThreads * kPack) {
    Pack<T, kPack> pack = {};
    SHALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      if (n + i < end) pack.at[i] = Narrow<T>(Widen(bias.Load(n + i)));
    }
    StorePack<kAligned>(c.at, c.Begin(row), n, end, pack);
  }
}

}  // namespace

absl::Status BroadcastBias(const Tensor& bias_N, const Tensor& c_MN, StreamHandle stream) {
  const int64_t M = c_MN.dim(0), N = c_MN.dim(1), chunks = CeilDivide(N, kColumns);
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(M * chunks)), .block = dim3(kThreads)};
  return WithElement(bias_N.dtype, [&](auto bias_element) {
    return WithElement(c_MN.dtype, [&](auto element) {
      using Bias = decltype(bias_element);
      using T = decltype(element);
      const auto start = [&](auto kernel) {
        return Launch("BroadcastBias", kernel, shape, stream, Whole<Bias>(bias_N, "bias"), Rows<T>(c_MN, "c"), N,
                      chunks);
      };
      const bool aligned = N % kPackOf<T> == 0 && RowsAligned(c_MN);
      return aligned ? start(BroadcastBiasKernel<Bias, T, true>) : start(BroadcastBiasKernel<Bias, T, false>);
    });
  });
}

}  // namespace shale::cuda
