// The dequantization of weights in 4 bits.
//
// The kernel makes one pass and is bound by memory: it reads 0.52 bytes of a weight and writes two or four. A thread
// owns 16 weights, whose codes it reads in one pack; four threads own a block and read the same absmax. The values of
// the codes and of the map lie in shared memory.
#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/dynamic_map.h"
#include "kernels/nf4.h"
#include "kernels/ops/quantized.h"

namespace shale::cuda {
namespace {

constexpr int kOwn = 16;  // Weights of a thread.

// blockIdx.y is the row. `floats` has the bytes of `stored`.
template <class T>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads)
    Nf4DequantizeKernel(Global<uint8_t> stored, Global<float> floats, Global<T> out, Nf4Row row) {
  SHALE_SHARED_ARRAY(float, values, kNf4Codes);
  SHALE_SHARED_ARRAY(float, levels, SignedMap::kLevels);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kNf4Codes) values.Store(thread, Nf4Value(thread));
  for (int level = thread; level < SignedMap::kLevels; level += kFlatThreads) {
    levels.Store(level, SignedMap::At(level));
  }
  __syncthreads();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kFlatThreads + thread) * kOwn;
  if (i >= row.weights) return;
  const int64_t r = blockIdx.y, begin = r * row.bytes(), group = i / kNf4GroupWeights;
  const auto codes = stored.template Load<kOwn / 2>(begin + i / 2);
  const int level =
      static_cast<int>(stored.Load(begin + row.absmax_begin() + i / kNf4BlockWeights)) - SignedMap::kZeroCode;
  const float value = levels.Load(level < 0 ? -level : level);
  const int64_t word = static_cast<int64_t>(sizeof(float));
  const float product = (level < 0 ? -value : value) * floats.Load((begin + row.scales_begin()) / word + group);
  const float absmax = product + floats.Load((begin + row.means_begin()) / word + group);
  Floats<kOwn> weights;
  SHALE_UNROLL
  for (int k = 0; k < kOwn; k += 2) {
    const int pair = codes.at[k / 2];
    weights.at[k] = values.Load(pair >> 4) * absmax;
    weights.at[k + 1] = values.Load(pair & 15) * absmax;
  }
  StoreFloats(out, r * row.weights + i, weights);
}

}  // namespace

absl::Status Run(const Nf4Dequantize& op, Scratch scratch, StreamHandle stream) {
  const Nf4Row row{op.out_RN.dim(1)};
  if (row.weights == 0) return absl::OkStatus();
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(CeilDivide(row.weights, int64_t{kFlatThreads} * kOwn)),
                                          static_cast<unsigned>(op.out_RN.dim(0))),
                             .block = dim3(kFlatThreads)};
  const int64_t bytes = op.stored_RP.elements();
  return WithElement(op.out_RN.dtype, [&](auto element) {
    using T = decltype(element);
    return Launch("Nf4Dequantize", Nf4DequantizeKernel<T>, shape, stream,
                  Global<uint8_t>(op.stored_RP.as<uint8_t>(), bytes, "stored"),
                  Global<float>(reinterpret_cast<float*>(op.stored_RP.data),
                                bytes / static_cast<int64_t>(sizeof(float)), "stored"),
                  Whole<T>(op.out_RN, "out"), row);
  });
}

}  // namespace shale::cuda
