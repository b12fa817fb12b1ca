// The conversion of a matrix to fp8, with one scale or with blockwise scales ([Note: blockwise scales] in
// kernels/float8_scales.h). Reads x once, and is bound by memory. See [Note: tiles of fp8] in float8_tile.h.
//
// float8_source.h says what the matrix is: x, or what another op would have computed from x.
//
// QuantizePartsKernel finds the maxima of rows, columns or the whole tile in the numbers that its threads hold anyway,
// because a tile of a block of threads is a block of scales: maxima of rows by shuffles, those of columns by shuffles
// in each warp and then through shared memory. Each maximum is divided by only once, because that is done in fp64.
#include <type_traits>

#include "kernels/cuda/flat.h"
#include "kernels/cuda/float8_source.h"
#include "kernels/cuda/float8_tile.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/float8.h"
#include "kernels/integers.h"
#include "kernels/ops/float8.h"

namespace shale::cuda {
namespace {

// The numbers of one thread.
struct OwnNumbers {
  float at[kOwnRows][kOwnColumns];
};

// Loads or computes them as fp32, with zeros past the edges.
template <bool kAligned, class Source>
SHALE_DEVICE OwnNumbers LoadOwn(const Source& source, const OwnPlace& place, int64_t R, int64_t C) {
  constexpr int kPack = kPackOf<typename Source::Element>, kPacks = kOwnColumns / kPack;
  constexpr int kRowsOfTurn = kOwnRows / Source::kTurns;
  const int64_t column = place.first_column() + place.column;
  OwnNumbers numbers;
  SHALE_UNROLL
  for (int first = 0; first < kOwnRows; first += kRowsOfTurn) {
    const int64_t row = place.first_row() + place.row + first;
    typename Source::Raw raws[kRowsOfTurn][kPacks] = {};
    SHALE_UNROLL
    for (int r = 0; r < kRowsOfTurn; ++r) {
      SHALE_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        if (row + r < R) raws[r][p] = source.template Load<kAligned>(row + r, column + p * kPack, C);
      }
    }
    SHALE_UNROLL
    for (int r = 0; r < kRowsOfTurn; ++r) {
      SHALE_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        const auto values = source.template Values<kAligned>(raws[r][p], column + p * kPack, C);
        SHALE_UNROLL
        for (int i = 0; i < kPack; ++i) numbers.at[first + r][p * kPack + i] = Widen(values.at[i]);
      }
    }
  }
  return numbers;
}

// Returns the place of a thread. If the halves of a row are computed from the same numbers, blocks that read these run
// one after another, so that the second finds them in the L2 cache.
template <class Source>
SHALE_DEVICE OwnPlace PlaceInSource(int64_t column_tiles) {
  OwnPlace place = PlaceOfThread(column_tiles);
  if constexpr (Source::kHalves == 2) {
    const int64_t turn = place.tile_column;
    place.tile_column = turn / 2 + turn % 2 * ((column_tiles + 1) / 2);
  }
  return place;
}

// The factors of a thread's rows, and of its columns in the transposed matrix.
struct OwnFactors {
  float of_row[kOwnRows], of_column[kOwnColumns];

  SHALE_DEVICE void SetAll(float factor) {
    SHALE_UNROLL
    for (int r = 0; r < kOwnRows; ++r) of_row[r] = factor;
    SHALE_UNROLL
    for (int c = 0; c < kOwnColumns; ++c) of_column[c] = factor;
  }
};

// Writes the codes of the tile's numbers times their factors to `out` and to `transposed`, those of them that are
// present. All threads of the block must call it, once.
template <class Format, bool kAligned>
SHALE_DEVICE void StoreCodes(const OwnNumbers& numbers, const OwnFactors& factors, const OwnPlace& place,
                             const Global<uint8_t>& out, const Global<uint8_t>& transposed, int64_t R, int64_t C) {
  if (out.present()) {
    SHALE_UNROLL
    for (int r = 0; r < kOwnRows; ++r) {
      Pack<uint32_t, kPackWords> words;
      const auto& row = numbers.at[r];
      const float factor = factors.of_row[r];
      SHALE_UNROLL
      for (int w = 0; w < kPackWords; ++w) {
        words.at[w] = WordOfCodes<Format>(row[4 * w] * factor, row[4 * w + 1] * factor, row[4 * w + 2] * factor,
                                          row[4 * w + 3] * factor);
      }
      const int64_t at = place.first_row() + place.row + r;
      if (at < R) StorePack<kAligned>(out, at * C, place.first_column() + place.column, C, CodesOf(words));
    }
  }
  if (!transposed.present()) return;
  SHALE_SHARED_ARRAY(uint32_t, tile, kTile * kColumnWords);
  SHALE_UNROLL
  for (int c = 0; c < kOwnColumns; ++c) {
    const auto& at = numbers.at;
    const float factor = factors.of_column[c];
    tile.Store(PlaceOf(place.column + c, place.row / kOwnRows),
               WordOfCodes<Format>(at[0][c] * factor, at[1][c] * factor, at[2][c] * factor, at[3][c] * factor));
  }
  __syncthreads();
  StoreColumns<kAligned>(tile, transposed, place.first_row(), place.first_column(), R, C);
}

// kAligned promises that packs of 16 numbers of x, out and transposed are whole and begin at multiples of 16 bytes.
template <class Format, class Source, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    QuantizeFloat8Kernel(Source source, Global<float> maximum, Global<uint8_t> out, Global<uint8_t> transposed,
                         Global<float> scale, int64_t R, int64_t C, int64_t column_tiles) {
  SHALE_SHARED_ARRAY(float, factor_of_block, 1);
  const OwnPlace place = PlaceInSource<Source>(column_tiles);
  OwnNumbers numbers = LoadOwn<kAligned>(source, place, R, C);
  if (threadIdx.x == 0) {
    const float factor = Float8Factor(Format::kDType, maximum.Load(0));
    factor_of_block.Store(0, factor);
    if (blockIdx.x == 0) scale.Store(0, 1 / factor);
  }
  __syncthreads();
  // Rows and columns have the same products, which take fewer registers in place of the numbers.
  const float factor = factor_of_block.Load(0);
  SHALE_UNROLL
  for (int r = 0; r < kOwnRows; ++r) {
    SHALE_UNROLL
    for (int c = 0; c < kOwnColumns; ++c) numbers.at[r][c] *= factor;
  }
  OwnFactors ones = {};
  ones.SetAll(1);
  StoreCodes<Format, kAligned>(numbers, ones, place, out, transposed, R, C);
}

// Returns the factors of a thread's rows, whose largest magnitudes among its own numbers are `largest`. Writes the
// scales. The threads of a row are neighbors.
template <class Format>
SHALE_DEVICE void FindRowFactors(uint32_t (&largest)[kOwnRows], const OwnPlace& place, const Global<float>& scales,
                                 const Float8ScaleMatrix& matrix, int64_t R, float (&factors)[kOwnRows]) {
  const int lane = static_cast<int>(threadIdx.x) % kRowThreads;
  uint32_t of_lane = 0;  // The first threads of a row divide for one row each.
  SHALE_UNROLL
  for (int r = 0; r < kOwnRows; ++r) {
    SHALE_UNROLL
    for (int lanes = kRowThreads / 2; lanes > 0; lanes /= 2) {
      largest[r] = Larger(largest[r], __shfl_xor_sync(kAllLanes, largest[r], lanes));
    }
    if (lane == r) of_lane = largest[r];
  }
  const float factor = Float8Factor(Format::kDType, MagnitudeOf(of_lane));
  const int64_t row = place.first_row() + place.row + lane;
  if (lane < kOwnRows && row < R && scales.present()) {
    scales.Store(matrix.PlaceOf(row, place.first_column()), 1 / factor);
  }
  SHALE_UNROLL
  for (int r = 0; r < kOwnRows; ++r) factors[r] = __shfl_sync(kAllLanes, factor, r, kRowThreads);
}

// Does the same for a thread's columns, as rows of the transposed matrix. The threads of a column are in all warps. All
// threads of the block must call it, once.
template <class Format>
SHALE_DEVICE void FindColumnFactors(uint32_t (&largest)[kOwnColumns], const OwnPlace& place,
                                    const Global<float>& scales, const Float8ScaleMatrix& matrix, int64_t C,
                                    float (&factors)[kOwnColumns]) {
  constexpr int kWarps = kThreads / kWarpThreads;
  SHALE_SHARED_ARRAY(uint32_t, of_warps, kWarps * kTile);
  SHALE_SHARED_ARRAY(float, of_columns, kTile);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpThreads;
  SHALE_UNROLL
  for (int c = 0; c < kOwnColumns; ++c) {
    SHALE_UNROLL
    for (int lanes = kRowThreads; lanes < kWarpThreads; lanes *= 2) {
      largest[c] = Larger(largest[c], __shfl_xor_sync(kAllLanes, largest[c], lanes));
    }
    if (thread % kWarpThreads < kRowThreads) of_warps.Store(warp * kTile + place.column + c, largest[c]);
  }
  __syncthreads();
  if (thread < kTile) {
    uint32_t of_column = 0;
    for (int w = 0; w < kWarps; ++w) of_column = Larger(of_column, of_warps.Load(w * kTile + thread));
    const float factor = Float8Factor(Format::kDType, MagnitudeOf(of_column));
    of_columns.Store(thread, factor);
    const int64_t column = place.first_column() + thread;
    if (column < C) scales.Store(matrix.PlaceOf(column, place.first_row()), 1 / factor);
  }
  __syncthreads();
  SHALE_UNROLL
  for (int c = 0; c < kOwnColumns; ++c) factors[c] = of_columns.Load(place.column + c);
}

// Writes the scale of a block of a matrix, `row` and `column` counted in blocks. After the last one of a row it fills
// this up with zeros.
SHALE_DEVICE void StoreBlockScale(const Global<float>& scales, const Float8ScaleMatrix& matrix, int64_t row,
                                  int64_t column, int64_t columns, float scale) {
  if (!scales.present() || threadIdx.x != 0) return;
  scales.Store(row * matrix.columns + column, scale);
  for (int64_t c = columns; column == columns - 1 && c < matrix.columns; ++c)
    scales.Store(row * matrix.columns + c, 0.f);
}

// kAligned promises the same. `of_out` and `of_transposed` say where scales lie.
template <class Format, class Source, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    QuantizePartsKernel(Source source, Global<uint8_t> out, Global<uint8_t> transposed, Global<float> out_scales,
                        Global<float> transposed_scales, Float8ScaleMatrix of_out, Float8ScaleMatrix of_transposed,
                        int64_t R, int64_t C, int64_t column_tiles) {
  const OwnPlace place = PlaceInSource<Source>(column_tiles);
  const OwnNumbers numbers = LoadOwn<kAligned>(source, place, R, C);
  uint32_t of_row[kOwnRows] = {}, of_column[kOwnColumns] = {};
  SHALE_UNROLL
  for (int r = 0; r < kOwnRows; ++r) {
    SHALE_UNROLL
    for (int c = 0; c < kOwnColumns; ++c) {
      const uint32_t magnitude = __float_as_uint(numbers.at[r][c]) & 0x7FFFFFFFu;
      of_row[r] = Larger(of_row[r], magnitude);
      of_column[c] = Larger(of_column[c], magnitude);
    }
  }
  OwnFactors factors = {};
  if (of_out.scales == Float8Scales::kBlocks) {
    uint32_t largest = 0;
    SHALE_UNROLL
    for (int r = 0; r < kOwnRows; ++r) largest = Larger(largest, of_row[r]);
    const float factor = Float8Factor(Format::kDType, MagnitudeOf(LargestOfBlock<kThreads>(largest)));
    factors.SetAll(factor);
    const int64_t row_tiles = (R + kTile - 1) / kTile;
    StoreBlockScale(out_scales, of_out, place.tile_row, place.tile_column, column_tiles, 1 / factor);
    StoreBlockScale(transposed_scales, of_transposed, place.tile_column, place.tile_row, row_tiles, 1 / factor);
  } else {
    FindRowFactors<Format>(of_row, place, out_scales, of_out, R, factors.of_row);
    if (transposed.present()) {
      FindColumnFactors<Format>(of_column, place, transposed_scales, of_transposed, C, factors.of_column);
    }
  }
  StoreCodes<Format, kAligned>(numbers, factors, place, out, transposed, R, C);
}

}  // namespace

absl::Status Run(const QuantizeFloat8& op, Scratch scratch, StreamHandle stream) {
  const int64_t R = op.x_RC.dim(0), C = op.columns();
  const int64_t column_tiles = CeilDivide(C, kTile), tiles = CeilDivide(R, kTile) * column_tiles;
  const bool transposed_aligned = !op.transposed_CR.present() || (R % 16 == 0 && Aligned16(op.transposed_CR));
  const bool aligned = C % 16 == 0 && SourceAligned(op.x_RC, op.source) && Aligned16(op.out_RC) && transposed_aligned;
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(tiles)), .block = dim3(kThreads)};
  const auto out = Whole<uint8_t>(op.out_RC, "out"), transposed = Whole<uint8_t>(op.transposed_CR, "transposed");
  return WithFloat8Source(op.x_RC, op.source, scratch, stream, [&](const auto& source) {
    using Source = std::decay_t<decltype(source)>;
    const auto run = [&](auto code) {
      using Format = decltype(code);
      if (op.scales != Float8Scales::kOne) {
        const auto kernel =
            aligned ? QuantizePartsKernel<Format, Source, true> : QuantizePartsKernel<Format, Source, false>;
        return Launch("QuantizeFloat8", kernel, shape, stream, source, out, transposed,
                      Whole<float>(op.out_scales, "out_scales"),
                      Whole<float>(op.transposed_scales, "transposed_scales"), Float8ScaleMatrix::Of(op.scales, R, C),
                      Float8ScaleMatrix::Of(op.scales, C, R), R, C, column_tiles);
      }
      const auto kernel =
          aligned ? QuantizeFloat8Kernel<Format, Source, true> : QuantizeFloat8Kernel<Format, Source, false>;
      return Launch("QuantizeFloat8", kernel, shape, stream, source, Whole<float>(op.maximum_1, "maximum"), out,
                    transposed, Whole<float>(op.scale_1, "scale"), R, C, column_tiles);
    };
    if constexpr (Source::kIsOfForward) {
      return run(Float8E4M3());
    } else {
      return WithFloat8(op.format(), run);
    }
  });
}

}  // namespace shale::cuda
