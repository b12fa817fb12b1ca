// Attention over a cache of keys and values. Rows are the queries of one key head, numbered token by token: row r is
// query head r mod (H / G) of the group, of token r / (H / G). A thread takes a few rows at a time. It computes their
// scores with all keys that any of them sees, the softmax of each row, and the sums of values.
//
// A head with few rows (a single new token) is computed in blocks of up to kRows rows, which read keys and values where
// they lie; reading the cache bounds the time. Many rows (a prompt) are computed in strips, with the tiles of
// attention's other kernels: keys and values are packed for each strip, and arithmetic bounds the time. A row gets the
// same bits in whatever block, strip or run it is computed, as long as the run has few rows or many.
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
#include "kernels/cpu/tile-inl.h"
#include "kernels/integers.h"
#include "kernels/ops/attention.h"
#include "kernels/reference/index_checks.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

constexpr int kRows = 4;        // Of a block, at most.
constexpr int kStripRows = 48;  // Of a strip, at most. A multiple of kGroup on all targets.

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

// A row, and the positions [first, end) that it sees.
template <class T>
struct SeenRow {
  SeenRow(const CachedAttention& op, int64_t b, int64_t g, int64_t r) {
    const int64_t per_group = op.q_BSHD.dim(2) / op.k_BSGD.dim(2), s = r / per_group, h = g * per_group + r % per_group;
    q = HeadRows<T>(op.q_BSHD, b, h)[s];
    out = HeadRows<T>(op.out_BSHD, b, h)[s];
    end = BeginOf(op.begins_B, b) + s + 1;
    first = op.window > 0 ? std::max<int64_t>(0, end - op.window) : 0;
  }

  const T* q;
  T* out;
  int64_t first, end;
};

// What the rows of a block or a strip see: column 0 of the scores is position `origin`, and any row sees [begin, stop).
template <class T>
struct CachedBlock {
  int64_t origin, begin, stop;
  // By row, of a block.
  int64_t first[kRows], end[kRows];
  const T* q[kRows];
  T* out[kRows];
};

// Computes kCount rows. `scores` has a row of `stride` floats for each.
template <int kCount, class T>
void AttendBlock(const CachedBlock<T>& block, const CachedRows<const T>& keys, const CachedRows<const T>& values,
                 float scale, float cap, float* scores, int64_t stride) {
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
    if (cap > 0) CapRow(row, 0, columns, 1 / cap, cap);
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
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  CachedBlock<T> block;
  for (int64_t r = 0; r < count; ++r) {
    const SeenRow<T> row(op, b, g, r0 + r);
    block.q[r] = row.q;
    block.out[r] = row.out;
    block.first[r] = row.first;
    block.end[r] = row.end;
  }
  block.begin = block.first[0];
  block.stop = block.end[count - 1];
  // Columns begin at a multiple of a vector, so that a position always lies in the same lane of the sums.
  block.origin = RoundDown(block.begin, lanes);
  const CachedRows<const T> keys(op.keys_CGPD, b, g), values(op.values_CGPD, b, g);
  switch (count) {
    case 1: return AttendBlock<1>(block, keys, values, op.scale, op.cap, scores, stride);
    case 2: return AttendBlock<2>(block, keys, values, op.scale, op.cap, scores, stride);
    case 3: return AttendBlock<3>(block, keys, values, op.scale, op.cap, scores, stride);
    default: return AttendBlock<4>(block, keys, values, op.scale, op.cap, scores, stride);
  }
}

// One thread's scratch for strips.
struct StripScratch {
  StripScratch(int64_t rows, int64_t stride, int64_t padded_d, Carver& carver)
      : scores(carver.Take(rows * stride)),
        q(carver.Take(rows * padded_d)),
        out(carver.Take(rows * padded_d)),
        packed(carver.Take(kTile * padded_d)),
        room(carver.Take(kTile * padded_d)) {}

  float *scores, *q, *out;  // By row: [stride], and twice [D]
  float* packed;            // Keys [D][kTile], or values [kTile][D]
  float* room;              // [kTile][D]
};

// Copies the rows of positions [begin, begin + kTile) to [kTile][padded_d], with zeros where `block` sees none.
template <class T>
void PackCached(const CachedBlock<T>& block, const CachedRows<const T>& cache, int64_t begin, int64_t padded_d,
                float* to) {
  for (int64_t position = begin; position < begin + kTile; ++position, to += padded_d) {
    if (position < block.begin || position >= block.stop) {
      std::fill(to, to + padded_d, 0.0f);
    } else {
      PackRows(cache[position], 0, 1, cache.width, to, padded_d);
    }
  }
}

// Computes the strip of `count` rows that begins with row r0 of key head g of sequence b.
template <class T>
void AttendStrip(const CachedAttention& op, int64_t b, int64_t g, int64_t r0, int64_t count, const StripScratch& own,
                 int64_t stride) {
  const int64_t width = op.q_BSHD.dim(3), padded_d = RoundUp(width, kTile), padded_rows = RoundUp(count, kGroup);
  const auto row = [&](int64_t r) { return SeenRow<T>(op, b, g, r0 + r); };
  CachedBlock<T> strip;
  strip.begin = row(0).first;
  strip.stop = row(count - 1).end;
  // A multiple of a vector too, so that a position always lies in the same lane of the sums.
  strip.origin = RoundDown(strip.begin, kTile);
  const int64_t columns = RoundUp(strip.stop - strip.origin, kTile);
  for (int64_t r = 0; r < count; ++r) PackRows(row(r).q, 0, 1, width, own.q + r * padded_d, padded_d);
  std::fill(own.q + count * padded_d, own.q + padded_rows * padded_d, 0.0f);
  const CachedRows<const T> keys(op.keys_CGPD, b, g), values(op.values_CGPD, b, g);
  for (int64_t j = 0; j < columns; j += kTile) {
    PackCached(strip, keys, strip.origin + j, padded_d, own.room);
    Transpose(own.room, padded_d, kTile, padded_d, own.packed, kTile);
    for (int64_t r = 0; r < padded_rows; r += kGroup) {
      MultiplyTile<Operand::kRows, Result::kScale>(own.q + r * padded_d, padded_d, own.packed, kTile, width, op.scale,
                                                   own.scores + r * stride + j, stride);
    }
  }
  float sums[kStripRows];
  for (int64_t r = 0; r < count; ++r) {
    float* scores = own.scores + r * stride;
    if (op.cap > 0) CapRow(scores, 0, columns, 1 / op.cap, op.cap);
    HideColumns(scores, 0, row(r).first - strip.origin, row(r).end - strip.origin, columns);
    sums[r] = ExpRow(scores, 0, columns, LargestOf(scores, 0, columns));
  }
  std::fill(own.out, own.out + padded_rows * padded_d, 0.0f);
  for (int64_t j = 0; j < columns; j += kTile) {
    PackCached(strip, values, strip.origin + j, padded_d, own.packed);
    for (int64_t n = 0; n < padded_d; n += kTile) {
      for (int64_t r = 0; r < padded_rows; r += kGroup) {
        MultiplyTile<Operand::kRows, Result::kAdd>(own.scores + r * stride + j, stride, own.packed + n, padded_d, kTile,
                                                   1.0f, own.out + r * padded_d + n, padded_d);
      }
    }
  }
  for (int64_t r = 0; r < count; ++r) UnpackRows(own.out + r * padded_d, 0, 1, width, 1 / sums[r], row(r).out, 0);
}

// Returns the scratch of one thread for strips of so many rows.
int64_t CachedAttentionScratch(const CachedAttention& op, int64_t rows, int64_t stride) {
  Carver carver(nullptr);
  StripScratch(rows, stride, RoundUp(op.q_BSHD.dim(3), kTile), carver);
  return carver.size_bytes();
}

// `rows` is what the scratch is for.
void CachedAttentionStrip(const CachedAttention& op, int64_t b, int64_t g, int64_t r0, int64_t count, int64_t rows,
                          std::byte* scratch, int64_t stride) {
  Carver carver(scratch);
  const StripScratch own(rows, stride, RoundUp(op.q_BSHD.dim(3), kTile), carver);
  ForElementType(op.q_BSHD.dtype,
                 [&](auto element) HWY_ATTR { AttendStrip<decltype(element)>(op, b, g, r0, count, own, stride); });
}

void CachedAttentionRows(const CachedAttention& op, int64_t b, int64_t g, int64_t r0, int64_t count, float* scores,
                         int64_t stride) {
  ForElementType(op.q_BSHD.dtype,
                 [&](auto element) HWY_ATTR { AttendRows<decltype(element)>(op, b, g, r0, count, scores, stride); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(CachedAttentionRows);
HWY_EXPORT(CachedAttentionStrip);
HWY_EXPORT(CachedAttentionScratch);

constexpr int64_t kMostColumns = 32;  // Of the widest vectors and tiles.

// How the rows of an op are divided.
struct Division {
  explicit Division(const CachedAttention& op)
      : heads(op.q_BSHD.dim(0) * op.k_BSGD.dim(2)),
        rows(op.q_BSHD.dim(1) * (op.q_BSHD.dim(2) / op.k_BSGD.dim(2))),
        stride(RoundUp(op.keys_CGPD.dim(2) + 2 * kMostColumns, kMostColumns)),
        strips(rows >= 16),
        // Strips of half as many rows keep the scores of long contexts within some MiB.
        block(!strips           ? 4
              : stride <= 16384 ? 48
                                : 24),
        blocks(CeilDivide(rows, block)) {}

  int64_t heads;   // Key heads of all sequences.
  int64_t rows;    // Of a key head.
  int64_t stride;  // Floats of a row of scores: rows of a block see at most as many positions as the cache holds.
  bool strips;     // Strips in the place of blocks.
  int64_t block;   // Rows of a block or strip.
  int64_t blocks;  // Of a key head.
};

int64_t ThreadScratchBytes(const CachedAttention& op, const Division& by) {
  if (by.strips) return HWY_DYNAMIC_DISPATCH(CachedAttentionScratch)(op, by.block, by.stride);
  return RoundUp(by.block * by.stride * static_cast<int64_t>(sizeof(float)), 256);
}

// Copies the keys or the values of the new tokens of one head to sequence c of the cache.
void Store(const CachedAttention& op, const Tensor& from_BSGD, const Tensor& cache_CGPD, int64_t c, int64_t g) {
  const int64_t b = c % from_BSGD.dim(0);
  const int64_t begin = BeginOf(op.begins_B, b), rows = cache_CGPD.dim(2), size = SizeOf(cache_CGPD.dtype);
  const int64_t row_bytes = cache_CGPD.dim(3) * size;
  std::byte* const cache = cache_CGPD.as<std::byte>() + (c * cache_CGPD.dim(1) + g) * rows * row_bytes;
  const std::byte* const from =
      from_BSGD.as<const std::byte>() + (b * from_BSGD.stride(0) + g * from_BSGD.stride(2)) * size;
  for (int64_t s = 0; s < from_BSGD.dim(1); ++s) {
    std::memcpy(cache + (begin + s) % rows * row_bytes, from + s * from_BSGD.stride(1) * size,
                static_cast<size_t>(row_bytes));
  }
}

}  // namespace

int64_t ScratchBytesOf(const CachedAttention& op, const Context& context) {
  const Division by(op);
  return ThreadScratchBytes(op, by) * std::min<int64_t>(context.team->threads(), by.heads * by.blocks);
}

absl::Status Run(const CachedAttention& op, Scratch scratch, const Context& context) {
  SHALE_RETURN_IF_ERROR(CheckBegins(op));
  const Division by(op);
  const int64_t groups = op.k_BSGD.dim(2), thread_bytes = ThreadScratchBytes(op, by);
  ParallelFor(*context.team, op.keys_CGPD.dim(0) * groups, RowsPerBlock(2 * op.q_BSHD.dim(1) * op.q_BSHD.dim(3)),
              [&](int64_t begin, int64_t end) {
                for (int64_t head = begin; head < end; ++head) {
                  Store(op, op.k_BSGD, op.keys_CGPD, head / groups, head % groups);
                  Store(op, op.v_BSGD, op.values_CGPD, head / groups, head % groups);
                }
              });
  ParallelFor(*context.team, by.heads * by.blocks, /*block=*/1, [&](int64_t item, int64_t, int thread) {
    const int64_t b = item / by.blocks / groups, g = item / by.blocks % groups, r0 = item % by.blocks * by.block;
    const int64_t count = std::min(by.block, by.rows - r0);
    std::byte* const own = scratch.data + thread * thread_bytes;
    if (by.strips) {
      HWY_DYNAMIC_DISPATCH(CachedAttentionStrip)(op, b, g, r0, count, by.block, own, by.stride);
    } else {
      HWY_DYNAMIC_DISPATCH(CachedAttentionRows)(op, b, g, r0, count, reinterpret_cast<float*>(own), by.stride);
    }
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
