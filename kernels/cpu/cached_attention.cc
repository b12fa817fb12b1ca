// Attention over a cache of keys and values. Rows are the queries of one key head, numbered token by token: row r is
// query head r mod (H / G) of the group, of token r / (H / G). A thread takes blocks of up to kRows rows. For each
// block it reads the keys once and computes the rows' scores, then the softmax of each row, then reads the values once.
// A row gets the same bits whatever the block and the run that it is computed in. Reading the cache bounds the time of
// a single new token.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cached_attention.cc"
#include <algorithm>
#include <cstring>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/check.h"
#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/attention_sizes-inl.h"
#include "kernels/cpu/attention_softmax-inl.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/integers.h"
#include "kernels/ops/attention.h"
#include "kernels/reference/index_checks.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

constexpr int kRows = 4;  // Of a block.

// Keys or values of one head: position p is in row p mod `rows`.
template <class T>
struct CachedRows {
  CachedRows(const Tensor& t_BGPD, int64_t b, int64_t g)
      : data(t_BGPD.as<T>() + (b * t_BGPD.dim(1) + g) * t_BGPD.dim(2) * t_BGPD.dim(3)),
        rows(t_BGPD.dim(2)),
        width(t_BGPD.dim(3)) {}
  T* operator[](int64_t position) const { return data + position % rows * width; }
  // Calls body(position, row, count) for the stretches of adjacent rows that hold positions [begin, end).
  template <class Body>
  HWY_INLINE void ForStretches(int64_t begin, int64_t end, const Body& body) const {
    while (begin < end) {
      const int64_t count = std::min(end - begin, rows - begin % rows);
      body(begin, (*this)[begin], count);
      begin += count;
    }
  }

  T* data;
  int64_t rows, width;
};

// Adds to sums[r][k] the products of row r of `a` and row k of `b`, `width` elements each.
template <int kA, int kB, class TA, class TB>
HWY_INLINE void AddProducts(const TA* const (&a)[kRows], const TB* b, int64_t width, float (&sums)[kRows][kB]) {
  Vector totals[kA][kB];
  for (int r = 0; r < kA; ++r) {
    for (int k = 0; k < kB; ++k) totals[r][k] = hn::Zero(Floats());
  }
  ForVectors(width, [&](int64_t d, auto lanes) HWY_ATTR {
    Vector y[kB];
    for (int k = 0; k < kB; ++k) y[k] = lanes.Load(b + k * width + d);
    for (int r = 0; r < kA; ++r) {
      const Vector x = lanes.Load(a[r] + d);
      for (int k = 0; k < kB; ++k) totals[r][k] = hn::MulAdd(x, y[k], totals[r][k]);
    }
  });
  for (int r = 0; r < kA; ++r) {
    for (int k = 0; k < kB; ++k) sums[r][k] = SumOfLanes(totals[r][k]);
  }
}

// The queries of a block, and what they see.
template <class T>
struct CachedBlock {
  int64_t first[kRows], end[kRows];  // Positions that each row sees.
  const T* q[kRows];
  T* out[kRows];
  int64_t origin, begin, stop;  // Column 0 of the scores is position `origin`; any row sees [begin, stop).
};

// Computes kCount rows. `scores` has a row of `stride` floats for each.
template <int kCount, class T>
void AttendBlock(const CachedBlock<T>& block, const CachedRows<const T>& keys, const CachedRows<const T>& values,
                 float scale, float* scores, int64_t stride) {
  constexpr int kKeys = kCount == 1 ? 8 : 4;
  const int64_t width = keys.width, lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  keys.ForStretches(block.begin, block.stop, [&](int64_t position, const T* row, int64_t count) HWY_ATTR {
    float* to = scores + position - block.origin;
    int64_t j = 0;
    for (; j + kKeys <= count; j += kKeys) {
      float sums[kRows][kKeys];
      AddProducts<kCount, kKeys>(block.q, row + j * width, width, sums);
      for (int r = 0; r < kCount; ++r) {
        for (int k = 0; k < kKeys; ++k) to[r * stride + j + k] = scale * sums[r][k];
      }
    }
    for (; j < count; ++j) {
      float sums[kRows][1];
      AddProducts<kCount, 1>(block.q, row + j * width, width, sums);
      for (int r = 0; r < kCount; ++r) to[r * stride + j] = scale * sums[r][0];
    }
  });
  const int64_t columns = RoundUp(block.stop - block.origin, lanes);
  float factors[kRows];
  for (int r = 0; r < kCount; ++r) {
    float* row = scores + r * stride;
    HideColumns(row, 0, block.first[r] - block.origin, block.end[r] - block.origin, columns);
    factors[r] = 1 / ExpRow(row, 0, columns, LargestOf(row, 0, columns));
  }
  // Sums the values in parts of up to four vectors, whose sums stay in registers.
  const auto sum_values = [&](int64_t d, auto vectors, auto part) HWY_ATTR {
    constexpr int kVectors = decltype(vectors)::value;
    Vector sums[kCount][kVectors];
    for (int r = 0; r < kCount; ++r) {
      for (int n = 0; n < kVectors; ++n) sums[r][n] = hn::Zero(Floats());
    }
    values.ForStretches(block.begin, block.stop, [&](int64_t position, const T* row, int64_t count) HWY_ATTR {
      const float* weights = scores + position - block.origin;
      for (int64_t j = 0; j < count; ++j) {
        Vector v[kVectors];
        for (int n = 0; n < kVectors; ++n) v[n] = part.Load(row + j * width + d + n * lanes);
        for (int r = 0; r < kCount; ++r) {
          const Vector weight = Splat(weights[r * stride + j]);
          for (int n = 0; n < kVectors; ++n) sums[r][n] = hn::MulAdd(weight, v[n], sums[r][n]);
        }
      }
    });
    for (int r = 0; r < kCount; ++r) {
      for (int n = 0; n < kVectors; ++n)
        part.Store(hn::Mul(sums[r][n], Splat(factors[r])), block.out[r] + d + n * lanes);
    }
  };
  int64_t d = 0;
  for (; d + 4 * lanes <= width; d += 4 * lanes) sum_values(d, std::integral_constant<int, 4>(), Full());
  for (; d + lanes <= width; d += lanes) sum_values(d, std::integral_constant<int, 1>(), Full());
  if (d < width) sum_values(d, std::integral_constant<int, 1>(), Partial{static_cast<size_t>(width - d)});
}

// Computes the block of `count` rows that begins with row r0 of key head g of sequence b.
template <class T>
void AttendRows(const CachedAttention& op, int64_t b, int64_t g, int64_t r0, int64_t count, float* scores,
                int64_t stride) {
  const int64_t per_group = op.q_BSHD.dim(2) / op.k_BSGD.dim(2), start = BeginOf(op.begins_B, b);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  CachedBlock<T> block;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t s = (r0 + r) / per_group, h = g * per_group + (r0 + r) % per_group;
    block.q[r] = HeadRows<T>(op.q_BSHD, b, h)[s];
    block.out[r] = HeadRows<T>(op.out_BSHD, b, h)[s];
    block.end[r] = start + s + 1;
    block.first[r] = op.window > 0 ? std::max<int64_t>(0, block.end[r] - op.window) : 0;
  }
  block.begin = block.first[0];
  block.stop = block.end[count - 1];
  // Columns begin at a multiple of a vector, so that a position always lies in the same lane of the sums.
  block.origin = RoundDown(block.begin, lanes);
  const CachedRows<const T> keys(op.keys_BGPD, b, g), values(op.values_BGPD, b, g);
  switch (count) {
    case 1: return AttendBlock<1>(block, keys, values, op.scale, scores, stride);
    case 2: return AttendBlock<2>(block, keys, values, op.scale, scores, stride);
    case 3: return AttendBlock<3>(block, keys, values, op.scale, scores, stride);
    default: return AttendBlock<4>(block, keys, values, op.scale, scores, stride);
  }
}

void CachedAttentionRows(const CachedAttention& op, int64_t b, int64_t g, int64_t r0, int64_t count, float* scores,
                         int64_t stride) {
  op.q_BSHD.dtype == DType::kFloat32 ? AttendRows<float>(op, b, g, r0, count, scores, stride)
                                     : AttendRows<BFloat16>(op, b, g, r0, count, scores, stride);
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(CachedAttentionRows);

constexpr int64_t kBlockRows = 4;
constexpr int64_t kMostLanes = 16;  // Of the widest vectors. HWY_MAX_BYTES is that of the baseline here.

int64_t RowsOfGroup(const CachedAttention& op) { return op.q_BSHD.dim(1) * (op.q_BSHD.dim(2) / op.k_BSGD.dim(2)); }
int64_t BlocksOf(const CachedAttention& op) {
  return op.q_BSHD.dim(0) * op.k_BSGD.dim(2) * CeilDivide(RowsOfGroup(op), kBlockRows);
}

// Returns the floats of a row of scores. Rows of a block see at most as many positions as the cache holds.
int64_t ScoreStride(const CachedAttention& op) { return RoundUp(op.keys_BGPD.dim(2) + 2 * kMostLanes, kMostLanes); }

int64_t ThreadScratchBytes(const CachedAttention& op) {
  return RoundUp(kBlockRows * ScoreStride(op) * static_cast<int64_t>(sizeof(float)), 256);
}

// Copies the keys or the values of the new tokens of one head of sequence b to the cache.
void Store(const CachedAttention& op, const Tensor& from_BSGD, const Tensor& cache_BGPD, int64_t b, int64_t g) {
  const int64_t begin = BeginOf(op.begins_B, b), rows = cache_BGPD.dim(2), size = SizeOf(cache_BGPD.dtype);
  const int64_t row_bytes = cache_BGPD.dim(3) * size;
  std::byte* const cache = cache_BGPD.as<std::byte>() + (b * cache_BGPD.dim(1) + g) * rows * row_bytes;
  const std::byte* const from =
      from_BSGD.as<const std::byte>() + (b * from_BSGD.stride(0) + g * from_BSGD.stride(2)) * size;
  for (int64_t s = 0; s < from_BSGD.dim(1); ++s) {
    std::memcpy(cache + (begin + s) % rows * row_bytes, from + s * from_BSGD.stride(1) * size,
                static_cast<size_t>(row_bytes));
  }
}

}  // namespace

int64_t ScratchBytesOf(const CachedAttention& op, const Context& context) {
  return ThreadScratchBytes(op) * std::min<int64_t>(context.team->threads(), BlocksOf(op));
}

absl::Status Run(const CachedAttention& op, Scratch scratch, const Context& context) {
  SHALE_RETURN_IF_ERROR(CheckBegins(op));
  const int64_t groups = op.k_BSGD.dim(2), rows = RowsOfGroup(op), blocks = CeilDivide(rows, kBlockRows);
  const int64_t heads = op.q_BSHD.dim(0) * groups;
  ParallelFor(*context.team, heads, RowsPerBlock(2 * op.q_BSHD.dim(1) * op.q_BSHD.dim(3)),
              [&](int64_t begin, int64_t end) {
                for (int64_t head = begin; head < end; ++head) {
                  Store(op, op.k_BSGD, op.keys_BGPD, head / groups, head % groups);
                  Store(op, op.v_BSGD, op.values_BGPD, head / groups, head % groups);
                }
              });
  ParallelFor(*context.team, heads * blocks, /*block=*/1, [&](int64_t item, int64_t, int thread) {
    const int64_t head = item / blocks, r0 = item % blocks * kBlockRows;
    float* const scores = reinterpret_cast<float*>(scratch.data + thread * ThreadScratchBytes(op));
    HWY_DYNAMIC_DISPATCH(CachedAttentionRows)
    (op, head / groups, head % groups, r0, std::min(kBlockRows, rows - r0), scores, ScoreStride(op));
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
