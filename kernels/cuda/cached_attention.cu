// Attention over a cache of keys and values.
//
// The first kernel stores the new keys and values: a block owns those of one token. In the second kernel, a block owns
// a query of a head. Each of its warps takes every kWarps-th key that the query sees. The lanes of a warp divide a row,
// so that a row is read once, by adjacent lanes, and keep the softmax so far in registers (Milakov and Gimelshein,
// 2018). At the end the warps' results are added in shared memory. Reading the cache bounds the time of a single new
// token. Positions that are not valid give wrong results, but no access outside of the operands.
#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/softmax.h"
#include "kernels/ops/attention.h"

namespace shale::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarpThreads;

// The keys or the values that the cache holds, [C, G, P, D].
template <class T>
struct CachedHeads {
  Global<T> at;
  int sequences, groups, rows, width;
  CachedHeads(const Tensor& t, const char* name)
      : at(Whole<T>(t, name)),
        sequences(static_cast<int>(t.shape[0])),
        groups(static_cast<int>(t.shape[1])),
        rows(static_cast<int>(t.shape[2])),
        width(static_cast<int>(t.shape[3])) {}
  // Returns the offset of the row that holds a position.
  SHALE_DEVICE int64_t Begin(int c, int g, int64_t position) const {
    const int64_t row = position - Quotient(position, rows) * rows;
    return ((static_cast<int64_t>(c) * groups + g) * rows + row) * width;
  }
};

template <class T>
SHALE_KERNEL SHALE_BOUNDS(kThreads) StoreInCacheKernel(Heads<T> k, Heads<T> v, Global<int32_t> begins,
                                                       CachedHeads<T> keys, CachedHeads<T> values, int batch) {
  const int b = blockIdx.x / k.length, s = blockIdx.x % k.length;
  const int64_t position = BeginOf(begins, b) + s;
  for (int i = threadIdx.x; i < keys.groups * keys.width; i += kThreads) {
    const int g = i / keys.width, d = i % keys.width;
    const T key = k.at.Load(k.Begin(b, s, g) + d), value = v.at.Load(v.Begin(b, s, g) + d);
    for (int c = b; c < keys.sequences; c += batch) {
      keys.at.Store(keys.Begin(c, g, position) + d, key);
      values.at.Store(values.Begin(c, g, position) + d, value);
    }
  }
}

// The softmax over the keys that a warp has taken so far, and of their weighted sum of values the elements that the
// calling lane owns.
template <int kElements>
struct RunningResult {
  RunningSoftmax softmax;
  float at[kElements] = {};

  // Takes another key, by its score and the lane's elements of its value.
  SHALE_DEVICE void Take(float score, const float (&value)[kElements]) {
    const float largest = fmaxf(softmax.largest, score), shift = ShiftOf(largest);
    const float correction = expf(softmax.largest - shift), p = expf(score - shift);
    softmax.largest = largest;
    softmax.sum = fmaf(softmax.sum, correction, p);
    SHALE_UNROLL
    for (int i = 0; i < kElements; ++i) at[i] = fmaf(p, value[i], at[i] * correction);
  }
};

// kElements: those of a row that a lane owns, lane + 32 i.
template <class T, int kElements>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    CachedAttentionKernel(Heads<T> q, Heads<T> out, Global<int32_t> begins, CachedHeads<T> keys, CachedHeads<T> values,
                          int heads, int heads_per_group, int window, float scale, float cap) {
  SHALE_SHARED_ARRAY(float, warp_largest, kWarps);
  SHALE_SHARED_ARRAY(float, warp_sum, kWarps);
  SHALE_SHARED_ARRAY(float, warp_result, kWarps* kElements* kWarpThreads);
  const int lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads, width = keys.width;
  const int h = blockIdx.x % heads, token = blockIdx.x / heads, b = token / q.length, s = token % q.length;
  const int g = h / heads_per_group;
  const int64_t position = BeginOf(begins, b) + s;
  const int64_t sees = window > 0 ? window : keys.rows, first = position >= sees ? position - sees + 1 : 0;

  RunningResult<kElements> result;
  float query[kElements];
  SHALE_UNROLL
  for (int i = 0; i < kElements; ++i) {
    const int d = lane + kWarpThreads * i;
    query[i] = d < width ? Widen(q.at.Load(q.Begin(b, s, h) + d)) * scale : 0.0f;
  }
  for (int64_t key = first + warp; key <= position; key += kWarps) {
    const int64_t k = keys.Begin(b, g, key), v = values.Begin(b, g, key);
    float score = 0, value[kElements];
    SHALE_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const int d = lane + kWarpThreads * i;
      if (d < width) score = fmaf(query[i], Widen(keys.at.Load(k + d)), score);
      value[i] = d < width ? Widen(values.at.Load(v + d)) : 0.0f;
    }
    SHALE_UNROLL
    for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) score += __shfl_xor_sync(kAllLanes, score, lanes);
    if (cap > 0) score = cap * tanhf(score / cap);
    result.Take(score, value);
  }

  if (lane == 0) {
    warp_largest.Store(warp, result.softmax.largest);
    warp_sum.Store(warp, result.softmax.sum);
  }
  SHALE_UNROLL
  for (int i = 0; i < kElements; ++i) {
    warp_result.Store((warp * kElements + i) * kWarpThreads + lane, result.at[i]);
  }
  __syncthreads();
  float of_all = -kInfinity, total = 0;
  for (int w = 0; w < kWarps; ++w) of_all = fmaxf(of_all, warp_largest.Load(w));
  const float shift = ShiftOf(of_all);
  for (int w = 0; w < kWarps; ++w) total = fmaf(warp_sum.Load(w), expf(warp_largest.Load(w) - shift), total);
  for (int d = threadIdx.x; d < width; d += kThreads) {
    float element = 0;
    for (int w = 0; w < kWarps; ++w) {
      element = fmaf(warp_result.Load(w * kElements * kWarpThreads + d), expf(warp_largest.Load(w) - shift), element);
    }
    out.at.Store(out.Begin(b, s, h) + d, Narrow<T>(element / total));
  }
}

}  // namespace

absl::Status Run(const CachedAttention& op, Scratch scratch, StreamHandle stream) {
  const int64_t B = op.q_BSHD.dim(0), S = op.q_BSHD.dim(1), H = op.q_BSHD.dim(2), G = op.k_BSGD.dim(2);
  return WithElement(op.q_BSHD.dtype, [&](auto element) {
    using T = decltype(element);
    const Global<int32_t> begins = Whole<int32_t>(op.begins_B, "begins");
    const CachedHeads<T> keys(op.keys_CGPD, "keys"), values(op.values_CGPD, "values");
    const auto shape = [](int64_t blocks) {
      return LaunchShape{.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads)};
    };
    SHALE_RETURN_IF_ERROR(Launch("CachedAttention", StoreInCacheKernel<T>, shape(B * S), stream,
                                 Heads<T>(op.k_BSGD, "k"), Heads<T>(op.v_BSGD, "v"), begins, keys, values,
                                 static_cast<int>(B)));
    const auto attend = [&](auto elements) {
      return Launch("CachedAttention", CachedAttentionKernel<T, decltype(elements)::value>, shape(B * S * H), stream,
                    Heads<T>(op.q_BSHD, "q"), Heads<T>(op.out_BSHD, "out"), begins, keys, values, static_cast<int>(H),
                    static_cast<int>(H / G), static_cast<int>(std::min(op.window, op.keys_CGPD.dim(2))), op.scale,
                    op.cap);
    };
    const int64_t width = op.q_BSHD.dim(3);
    if (width <= 64) return attend(std::integral_constant<int, 2>());
    if (width <= 128) return attend(std::integral_constant<int, 4>());
    if (width <= 256) return attend(std::integral_constant<int, 8>());
    return absl::InvalidArgumentError(absl::StrCat("CachedAttention: heads of width ", width, "; wanted at most 256"));
  });
}

}  // namespace shale::cuda
