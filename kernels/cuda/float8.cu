// The largest magnitude of a matrix, its conversion to fp8, and the transposition of a matrix of fp8. All read x once
// and are bound by memory.
//
// AbsMax has two steps. Each block of the first step finds the largest of kMaximumPacks packs and writes it to scratch,
// the single block of the second step finds the largest of these. It compares magnitudes by their bits in fp32, as
// integers: these have the order of the numbers, with NaNs above all of them.
//
// A block of QuantizeFloat8 owns a tile of kTile x kTile numbers. A thread reads kOwnColumns of each of kOwnRows rows,
// in packs that it requests before it waits for any, and writes the codes of a row as one pack. The columns of its
// numbers are words of kOwnRows codes. They go through shared memory, from which a thread reads the codes of 16 rows of
// a column, one pack of the transposed matrix. Threads of a warp write to different banks, because the place of a word
// depends on its column. TransposeFloat8 does the same with codes.
//
// QuantizeShard works on the parameters of the shard one after another. kMaxima runs the two steps of AbsMax for each.
// Each block of kQuantize compares the maxima of all ranks again, which is a few numbers, and a thread of it quantizes
// kShardNumbers numbers.
#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/work_division.h"
#include "kernels/float8.h"
#include "kernels/integers.h"
#include "kernels/ops/float8.h"

namespace shale::cuda {
namespace {

constexpr int kThreads = 256;
// Threads of the single block of the second step of AbsMax.
constexpr int kTotalThreads = 1024;

SHALE_DEVICE uint32_t Larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Returns the largest number of the block, in every thread. All threads must call it, once.
template <int kBlockThreads>
SHALE_DEVICE uint32_t LargestOfBlock(uint32_t largest) {
  SHALE_UNROLL
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    largest = Larger(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
  }
  SHALE_SHARED_ARRAY(uint32_t, of_warp, kBlockThreads / kWarpThreads);
  if (threadIdx.x % kWarpThreads == 0) of_warp.Store(threadIdx.x / kWarpThreads, largest);
  __syncthreads();
  for (int w = 0; w < kBlockThreads / kWarpThreads; ++w) largest = Larger(largest, of_warp.Load(w));
  return largest;
}

// Does the first step of AbsMax. C is the length of a row.
template <class T, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    PartialMaximaKernel(Rows<T> x, Global<uint32_t> partials, int64_t packs, int64_t packs_of_row, int64_t C) {
  constexpr int kPack = kPackOf<T>, kPacks = static_cast<int>(kMaximumPacks) / kThreads;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kMaximumPacks + threadIdx.x;
  Pack<T, kPack> loaded[kPacks] = {};
  SHALE_UNROLL
  for (int k = 0; k < kPacks; ++k) {
    const int64_t pack = begin + k * kThreads;
    if (pack >= packs) continue;
    const int64_t row = Quotient(pack, packs_of_row);
    loaded[k] = LoadPack<kAligned>(x.at, x.Begin(row), (pack - row * packs_of_row) * kPack, C);
  }
  uint32_t largest = 0;
  SHALE_UNROLL
  for (int k = 0; k < kPacks; ++k) {
    SHALE_UNROLL
    for (int i = 0; i < kPack; ++i) largest = Larger(largest, __float_as_uint(Widen(loaded[k].at[i])) & 0x7FFFFFFFu);
  }
  largest = LargestOfBlock<kThreads>(largest);
  if (threadIdx.x == 0) partials.Store(blockIdx.x, largest);
}

SHALE_KERNEL SHALE_BOUNDS(kTotalThreads)
    MaximumKernel(Global<uint32_t> partials, int64_t count, Global<float> maximum) {
  constexpr uint32_t kInfinity = 0x7F800000, kNan = 0x7FC00000;
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < count; i += kTotalThreads) largest = Larger(largest, partials.Load(i));
  largest = LargestOfBlock<kTotalThreads>(largest);
  if (threadIdx.x == 0) maximum.Store(0, __uint_as_float(largest > kInfinity ? kNan : largest));
}

constexpr int kTile = 128;
constexpr int kOwnRows = 4, kOwnColumns = 16;
constexpr int kColumnWords = kTile / kOwnRows;  // Words of a column of the tile.
constexpr int kPackWords = 4;                   // Words of a pack of 16 codes.
static_assert(kTile / kOwnRows * (kTile / kOwnColumns) == kThreads);

// Returns the place of a word of the tile in shared memory. Packs of a column stay whole, in another order in each
// group of kOwnColumns columns.
SHALE_DEVICE int PlaceOf(int column, int word) {
  const int pack = (word / kPackWords) ^ (column / kOwnColumns);
  return column * kColumnWords + pack * kPackWords + word % kPackWords;
}

template <class Format>
SHALE_DEVICE uint32_t WordOfCodes(float a, float b, float c, float d) {
  return Float8PairOf<Format>(a, b) | Float8PairOf<Format>(c, d) << 16;
}

SHALE_DEVICE Pack<uint8_t, 16> CodesOf(const Pack<uint32_t, kPackWords>& words) {
  Pack<uint8_t, 16> codes;
  SHALE_UNROLL
  for (int i = 0; i < 16; ++i) codes.at[i] = static_cast<uint8_t>(words.at[i / 4] >> (i % 4 * 8));
  return codes;
}

// Writes the columns of a tile, which begins at this row and column of a matrix, to the transposed matrix.
template <bool kAligned>
SHALE_DEVICE void StoreColumns(const Shared<uint32_t>& tile, const Global<uint8_t>& transposed, int64_t first_row,
                               int64_t first_column, int64_t R, int64_t C) {
  constexpr int kColumnPacks = kColumnWords / kPackWords;
  SHALE_UNROLL
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kColumnPacks; i += kThreads) {
    const int column = i / kColumnPacks, pack = i % kColumnPacks;
    if (first_column + column >= C) break;
    const auto words = tile.template Load<kPackWords>(PlaceOf(column, pack * kPackWords));
    StorePack<kAligned>(transposed, (first_column + column) * R, first_row + pack * 16, R, CodesOf(words));
  }
}

// The numbers of one thread.
struct OwnNumbers {
  float at[kOwnRows][kOwnColumns];
};

// Loads them as fp32, with zeros past the edges.
template <bool kAligned, class T>
SHALE_DEVICE OwnNumbers LoadOwn(const Rows<T>& x, int64_t row, int64_t column, int64_t R, int64_t C) {
  constexpr int kPack = kPackOf<T>, kPacks = kOwnColumns / kPack;
  Pack<T, kPack> packs[kOwnRows][kPacks] = {};
  SHALE_UNROLL
  for (int r = 0; r < kOwnRows; ++r) {
    SHALE_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      if (row + r < R) packs[r][p] = LoadPack<kAligned>(x.at, x.Begin(row + r), column + p * kPack, C);
    }
  }
  OwnNumbers numbers;
  SHALE_UNROLL
  for (int r = 0; r < kOwnRows; ++r) {
    SHALE_UNROLL
    for (int c = 0; c < kOwnColumns; ++c) numbers.at[r][c] = Widen(packs[r][c / kPack].at[c % kPack]);
  }
  return numbers;
}

// kAligned promises that packs of 16 numbers of x, out and transposed are whole and begin at multiples of 16 bytes.
template <class Format, class T, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    QuantizeFloat8Kernel(Rows<T> x, Global<float> maximum, Global<uint8_t> out, Global<uint8_t> transposed,
                         Global<float> scale, int64_t R, int64_t C, int64_t column_tiles) {
  SHALE_SHARED_ARRAY(uint32_t, tile, kTile * kColumnWords);
  SHALE_SHARED_ARRAY(float, factor_of_block, 1);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t tile_row = Quotient(blockIdx.x, column_tiles);
  const int64_t first_row = tile_row * kTile, first_column = (blockIdx.x - tile_row * column_tiles) * kTile;
  const int own_row = thread / (kTile / kOwnColumns) * kOwnRows;
  const int own_column = thread % (kTile / kOwnColumns) * kOwnColumns;
  OwnNumbers numbers = LoadOwn<kAligned>(x, first_row + own_row, first_column + own_column, R, C);
  if (thread == 0) {
    const float factor = Float8Factor(Format::kDType, maximum.Load(0));
    factor_of_block.Store(0, factor);
    if (blockIdx.x == 0) scale.Store(0, 1 / factor);
  }
  __syncthreads();
  const float factor = factor_of_block.Load(0);
  SHALE_UNROLL
  for (int r = 0; r < kOwnRows; ++r) {
    SHALE_UNROLL
    for (int c = 0; c < kOwnColumns; ++c) numbers.at[r][c] *= factor;
  }
  if (out.present()) {
    SHALE_UNROLL
    for (int r = 0; r < kOwnRows; ++r) {
      Pack<uint32_t, kPackWords> words;
      const auto& row = numbers.at[r];
      SHALE_UNROLL
      for (int w = 0; w < kPackWords; ++w) {
        words.at[w] = WordOfCodes<Format>(row[4 * w], row[4 * w + 1], row[4 * w + 2], row[4 * w + 3]);
      }
      const int64_t at = first_row + own_row + r;
      if (at < R) StorePack<kAligned>(out, at * C, first_column + own_column, C, CodesOf(words));
    }
  }
  if (!transposed.present()) return;
  SHALE_UNROLL
  for (int c = 0; c < kOwnColumns; ++c) {
    const auto& at = numbers.at;
    tile.Store(PlaceOf(own_column + c, own_row / kOwnRows),
               WordOfCodes<Format>(at[0][c], at[1][c], at[2][c], at[3][c]));
  }
  __syncthreads();
  StoreColumns<kAligned>(tile, transposed, first_row, first_column, R, C);
}

// kAligned promises the same of x and y.
template <bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    TransposeFloat8Kernel(Global<uint8_t> x, Global<uint8_t> y, int64_t R, int64_t C, int64_t column_tiles) {
  SHALE_SHARED_ARRAY(uint32_t, tile, kTile * kColumnWords);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t tile_row = Quotient(blockIdx.x, column_tiles);
  const int64_t first_row = tile_row * kTile, first_column = (blockIdx.x - tile_row * column_tiles) * kTile;
  const int own_row = thread / (kTile / kOwnColumns) * kOwnRows;
  const int own_column = thread % (kTile / kOwnColumns) * kOwnColumns;
  Pack<uint8_t, kOwnColumns> rows[kOwnRows] = {};
  SHALE_UNROLL
  for (int r = 0; r < kOwnRows; ++r) {
    const int64_t row = first_row + own_row + r;
    if (row < R) rows[r] = LoadPack<kAligned>(x, row * C, first_column + own_column, C);
  }
  SHALE_UNROLL
  for (int c = 0; c < kOwnColumns; ++c) {
    uint32_t word = 0;
    SHALE_UNROLL
    for (int r = 0; r < kOwnRows; ++r) word |= static_cast<uint32_t>(rows[r].at[c]) << (8 * r);
    tile.Store(PlaceOf(own_column + c, own_row / kOwnRows), word);
  }
  __syncthreads();
  StoreColumns<kAligned>(tile, y, first_row, first_column, R, C);
}

constexpr int kShardNumbers = 16;  // Of a thread.

// Quantizes the n numbers of a parameter in the shard. `maxima` are those of the ranks, `stride` elements apart.
// kAligned promises that packs of 16 numbers are whole and begin at multiples of 16 bytes.
template <class T, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    QuantizeShardKernel(Global<T> weights, Global<float> maxima, int64_t ranks, int64_t stride, Global<uint8_t> out,
                        Global<float> scale, int64_t n) {
  constexpr int kPack = kPackOf<T>, kPacks = kShardNumbers / kPack;
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kShardNumbers;
  Pack<T, kPack> packs[kPacks];
  SHALE_UNROLL
  for (int p = 0; p < kPacks; ++p) packs[p] = LoadPack<kAligned>(weights, 0, begin + p * kPack, n);
  uint32_t largest = 0;
  for (int64_t w = threadIdx.x; w < ranks; w += kThreads) {
    largest = Larger(largest, __float_as_uint(maxima.Load(w * stride)));
  }
  largest = LargestOfBlock<kThreads>(largest);
  SHALE_SHARED_ARRAY(float, factor_of_block, 1);
  if (threadIdx.x == 0) {
    const float factor = Float8Factor(Float8E4M3::kDType, __uint_as_float(largest));
    factor_of_block.Store(0, factor);
    if (blockIdx.x == 0) scale.Store(0, 1 / factor);
  }
  __syncthreads();
  const float factor = factor_of_block.Load(0);
  Pack<uint32_t, kPackWords> words;
  SHALE_UNROLL
  for (int w = 0; w < kPackWords; ++w) {
    float scaled[4];
    SHALE_UNROLL
    for (int i = 0; i < 4; ++i) scaled[i] = Widen(packs[(4 * w + i) / kPack].at[(4 * w + i) % kPack]) * factor;
    words.at[w] = WordOfCodes<Float8E4M3>(scaled[0], scaled[1], scaled[2], scaled[3]);
  }
  StorePack<kAligned>(out, 0, begin, n, CodesOf(words));
}

SHALE_KERNEL SHALE_BOUNDS(kThreads) ZeroCodesKernel(Global<uint8_t> codes, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) codes.Store(i, static_cast<uint8_t>(0));
}

// Returns elements of a vector as a matrix of one row.
Tensor RowOf(const Tensor& vector, const ElementRange& range) {
  return vector.Slice(0, range.begin, range.end - range.begin).Reshape({1, range.end - range.begin});
}

// Runs both steps of AbsMax. x may have no columns.
absl::Status FindMaximum(const Tensor& x, const Tensor& maximum, Scratch scratch, StreamHandle stream) {
  const PackedRows rows = PackedRows::Of(x.dtype, x.dim(0), x.dim(1), x.contiguous());
  const Global<uint32_t> partials(reinterpret_cast<uint32_t*>(scratch.data), rows.blocks(), "partials");
  if (rows.blocks() > 0) {
    SHALE_RETURN_IF_ERROR(WithElement(x.dtype, [&](auto element) {
      using T = decltype(element);
      const bool aligned = rows.columns % kPackOf<T> == 0 && RowsAligned(x);
      const auto kernel = aligned ? PartialMaximaKernel<T, true> : PartialMaximaKernel<T, false>;
      return Launch("AbsMax", kernel, {.grid = dim3(static_cast<unsigned>(rows.blocks())), .block = dim3(kThreads)},
                    stream, Rows<T>(x, "x"), partials, rows.packs(), rows.packs_of_row, rows.columns);
    }));
  }
  return Launch("AbsMax", MaximumKernel, {.grid = dim3(1), .block = dim3(kTotalThreads)}, stream, partials,
                rows.blocks(), Whole<float>(maximum, "maximum"));
}

absl::Status Quantize(const QuantizeShard& op, size_t q, StreamHandle stream) {
  const ElementRange part = op.PartOf(q);
  const int64_t n = part.end - part.begin;
  const auto column = static_cast<int64_t>(q);
  const Tensor weights = RowOf(op.weight_P, part), out = RowOf(op.out_P, part);
  const Tensor maxima = op.maxima_WQ.Slice(1, column, 1);
  const bool aligned = n % kShardNumbers == 0 && Aligned16(weights) && Aligned16(out);
  const int64_t blocks = CeilDivide(std::max<int64_t>(n, 1), kThreads * kShardNumbers);
  return WithElement(weights.dtype, [&](auto element) {
    using T = decltype(element);
    const auto kernel = aligned ? QuantizeShardKernel<T, true> : QuantizeShardKernel<T, false>;
    return Launch("QuantizeShard", kernel, {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads)},
                  stream, Whole<T>(weights, "weight"), Whole<float>(maxima, "maxima"), maxima.dim(0), maxima.stride(0),
                  Whole<uint8_t>(out, "out"), Whole<float>(op.scales_Q.Slice(0, column, 1), "scales"), n);
  });
}

absl::Status Zero(const QuantizeShard& op, const ElementRange& range, StreamHandle stream) {
  const int64_t n = range.end - range.begin;
  if (n == 0) return absl::OkStatus();
  return Launch("QuantizeShard", ZeroCodesKernel,
                {.grid = dim3(static_cast<unsigned>(CeilDivide(n, kThreads))), .block = dim3(kThreads)}, stream,
                Whole<uint8_t>(RowOf(op.out_P, range), "out"), n);
}

}  // namespace

absl::Status Run(const AbsMax& op, Scratch scratch, StreamHandle stream) {
  return FindMaximum(op.x_RC, op.maximum_1, scratch, stream);
}

absl::Status Run(const QuantizeFloat8& op, Scratch scratch, StreamHandle stream) {
  const int64_t R = op.x_RC.dim(0), C = op.x_RC.dim(1);
  const int64_t column_tiles = CeilDivide(C, kTile), tiles = CeilDivide(R, kTile) * column_tiles;
  const bool transposed_aligned = !op.transposed_CR.present() || (R % 16 == 0 && Aligned16(op.transposed_CR));
  const bool aligned = C % 16 == 0 && RowsAligned(op.x_RC) && Aligned16(op.out_RC) && transposed_aligned;
  const DType format = (op.out_RC.present() ? op.out_RC : op.transposed_CR).dtype;
  return WithFloat8(format, [&](auto code) {
    return WithElement(op.x_RC.dtype, [&](auto element) {
      using Format = decltype(code);
      using T = decltype(element);
      const auto kernel = aligned ? QuantizeFloat8Kernel<Format, T, true> : QuantizeFloat8Kernel<Format, T, false>;
      return Launch("QuantizeFloat8", kernel, {.grid = dim3(static_cast<unsigned>(tiles)), .block = dim3(kThreads)},
                    stream, Rows<T>(op.x_RC, "x"), Whole<float>(op.maximum_1, "maximum"),
                    Whole<uint8_t>(op.out_RC, "out"), Whole<uint8_t>(op.transposed_CR, "transposed"),
                    Whole<float>(op.scale_1, "scale"), R, C, column_tiles);
    });
  });
}

absl::Status Run(const QuantizeShard& op, Scratch scratch, StreamHandle stream) {
  const bool quantizes = op.stage == QuantizeShard::Stage::kQuantize;
  int64_t end = 0;  // Of what is written.
  for (size_t q = 0; q < op.parameters->size(); ++q) {
    const ElementRange part = op.PartOf(q);
    if (!quantizes) {
      const Tensor maximum = op.maxima_WQ.Slice(1, static_cast<int64_t>(q), 1).Reshape({1});
      SHALE_RETURN_IF_ERROR(FindMaximum(RowOf(op.weight_P, part), maximum, scratch, stream));
      continue;
    }
    SHALE_RETURN_IF_ERROR(Quantize(op, q, stream));
    if (part.begin == part.end) continue;
    SHALE_RETURN_IF_ERROR(Zero(op, {end, part.begin}, stream));
    end = part.end;
  }
  return quantizes ? Zero(op, {end, op.out_P.elements()}, stream) : absl::OkStatus();
}

absl::Status Run(const TransposeFloat8& op, Scratch scratch, StreamHandle stream) {
  const int64_t R = op.x_RC.dim(0), C = op.x_RC.dim(1);
  const int64_t column_tiles = CeilDivide(C, kTile), tiles = CeilDivide(R, kTile) * column_tiles;
  const bool aligned = R % 16 == 0 && C % 16 == 0 && Aligned16(op.x_RC) && Aligned16(op.y_CR);
  return Launch("TransposeFloat8", aligned ? TransposeFloat8Kernel<true> : TransposeFloat8Kernel<false>,
                {.grid = dim3(static_cast<unsigned>(tiles)), .block = dim3(kThreads)}, stream,
                Whole<uint8_t>(op.x_RC, "x"), Whole<uint8_t>(op.y_CR, "y"), R, C, column_tiles);
}

}  // namespace shale::cuda
