// The largest magnitude of a matrix, and its conversion to fp8. Both read x once and are bound by memory.
//
// AbsMax has two steps. Each block of the first step finds the largest of kMaximumPacks packs and writes it to scratch,
// the single block of the second step finds the largest of these. It compares magnitudes by their bits in fp32, as
// integers: these have the order of the numbers, with NaNs above all of them.
//
// A block of QuantizeFloat8 owns a tile of kTile x kTile numbers. A thread reads kOwnColumns of each of kOwnRows rows,
// in packs that it requests before it waits for any, and writes the codes of a row as one pack. The columns of its
// numbers are words of kOwnRows codes. They go through shared memory, from which a thread reads the codes of 16 rows of
// a column, one pack of the transposed matrix. Threads of a warp write to different banks, because the place of a word
// depends on its column.
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
  constexpr int kColumnPacks = kColumnWords / kPackWords;
  SHALE_UNROLL
  for (int i = thread; i < kTile * kColumnPacks; i += kThreads) {
    const int column = i / kColumnPacks, pack = i % kColumnPacks;
    if (first_column + column >= C) break;
    const auto words = tile.template Load<kPackWords>(PlaceOf(column, pack * kPackWords));
    StorePack<kAligned>(transposed, (first_column + column) * R, first_row + pack * 16, R, CodesOf(words));
  }
}

}  // namespace

absl::Status Run(const AbsMax& op, Scratch scratch, StreamHandle stream) {
  const Tensor& x = op.x_RC;
  const PackedRows rows = PackedRows::Of(x.dtype, x.dim(0), x.dim(1), x.contiguous());
  const Global<uint32_t> partials(reinterpret_cast<uint32_t*>(scratch.data), rows.blocks(), "partials");
  SHALE_RETURN_IF_ERROR(WithElement(x.dtype, [&](auto element) {
    using T = decltype(element);
    const bool aligned = rows.columns % kPackOf<T> == 0 && RowsAligned(x);
    const auto kernel = aligned ? PartialMaximaKernel<T, true> : PartialMaximaKernel<T, false>;
    return Launch("AbsMax", kernel, {.grid = dim3(static_cast<unsigned>(rows.blocks())), .block = dim3(kThreads)},
                  stream, Rows<T>(x, "x"), partials, rows.packs(), rows.packs_of_row, rows.columns);
  }));
  return Launch("AbsMax", MaximumKernel, {.grid = dim3(1), .block = dim3(kTotalThreads)}, stream, partials,
                rows.blocks(), Whole<float>(op.maximum_1, "maximum"));
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

}  // namespace shale::cuda
