// The largest magnitude of a matrix, the conversion of a shard to fp8, and the transposition of a matrix of fp8. All
// read x once and are bound by memory, but for sources that rotate, which read each number twice. quantize_float8.cu
// converts whole matrices.
//
// AbsMax has two steps, for each source of its matrix (float8_source.h). Each block of the first step finds the largest
// of kMaximumPacks packs and writes it to scratch, the single block of the second step finds the largest of these. It
// compares magnitudes by their bits in fp32, as integers: these have the order of the numbers, with NaNs above all of
// them.
//
// TransposeFloat8 works in tiles ([Note: tiles of fp8] in float8_tile.h).
//
// QuantizeShard works on the parameters of the shard one after another. kMaxima runs the two steps of AbsMax for each.
// Each block of kQuantize compares the maxima of all ranks again, which is a few numbers, and a thread of it quantizes
// kShardNumbers numbers.
#include <algorithm>
#include <type_traits>

#include "kernels/check.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/float8_source.h"
#include "kernels/cuda/float8_tile.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/work_division.h"
#include "kernels/float8.h"
#include "kernels/integers.h"
#include "kernels/ops/float8.h"

namespace shale::cuda {
namespace {

// Threads of the single block of the second step of AbsMax.
constexpr int kTotalThreads = 1024;

// Does the first step of AbsMax. C is the length of a row, or of one of its halves if the source has two.
template <class Source, bool kAligned, class T = typename Source::Element>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    PartialMaximaKernel(Source source, Global<uint32_t> partials, int64_t packs, int64_t packs_of_row, int64_t C) {
  constexpr int kPack = kPackOf<T>, kPacks = static_cast<int>(kMaximumPacks) / kThreads;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kMaximumPacks + threadIdx.x;
  uint32_t largest = 0;
  SHALE_UNROLL
  for (int turn = 0; turn < Source::kTurns; ++turn) {
    constexpr int kOfTurn = kPacks / Source::kTurns;
    typename Source::Raw loaded[kOfTurn] = {};
    int64_t columns[kOfTurn] = {};
    SHALE_UNROLL
    for (int k = 0; k < kOfTurn; ++k) {
      const int64_t pack = begin + (turn * kOfTurn + k) * kThreads;
      if (pack >= packs) continue;
      const int64_t row = Quotient(pack, packs_of_row);
      columns[k] = (pack - row * packs_of_row) * kPack;
      loaded[k] = source.template Load<kAligned>(row, columns[k], C);
    }
    SHALE_UNROLL
    for (int k = 0; k < kOfTurn; ++k) {
      SHALE_UNROLL
      for (int half = 0; half < Source::kHalves; ++half) {
        const Pack<T, kPack> values = source.template Values<kAligned>(loaded[k], columns[k] + half * C, C);
        SHALE_UNROLL
        for (int i = 0; i < kPack; ++i) largest = Larger(largest, __float_as_uint(Widen(values.at[i])) & 0x7FFFFFFFu);
      }
    }
  }
  largest = LargestOfBlock<kThreads>(largest);
  if (threadIdx.x == 0) partials.Store(blockIdx.x, largest);
}

SHALE_KERNEL SHALE_BOUNDS(kTotalThreads)
    MaximumKernel(Global<uint32_t> partials, int64_t count, Global<float> maximum) {
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < count; i += kTotalThreads) largest = Larger(largest, partials.Load(i));
  largest = LargestOfBlock<kTotalThreads>(largest);
  if (threadIdx.x == 0) maximum.Store(0, MagnitudeOf(largest));
}

// kAligned promises that packs of 16 codes of x and y are whole and begin at multiples of 16 bytes.
template <bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    TransposeFloat8Kernel(Global<uint8_t> x, Global<uint8_t> y, int64_t R, int64_t C, int64_t column_tiles) {
  SHALE_SHARED_ARRAY(uint32_t, tile, kTile * kColumnWords);
  const OwnPlace place = PlaceOfThread(column_tiles);
  Pack<uint8_t, kOwnColumns> rows[kOwnRows] = {};
  SHALE_UNROLL
  for (int r = 0; r < kOwnRows; ++r) {
    const int64_t row = place.first_row() + place.row + r;
    if (row < R) rows[r] = LoadPack<kAligned>(x, row * C, place.first_column() + place.column, C);
  }
  SHALE_UNROLL
  for (int c = 0; c < kOwnColumns; ++c) {
    uint32_t word = 0;
    SHALE_UNROLL
    for (int r = 0; r < kOwnRows; ++r) word |= static_cast<uint32_t>(rows[r].at[c]) << (8 * r);
    tile.Store(PlaceOf(place.column + c, place.row / kOwnRows), word);
  }
  __syncthreads();
  StoreColumns<kAligned>(tile, y, place.first_row(), place.first_column(), R, C);
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
absl::Status FindMaximum(const Tensor& x, const Float8Source& source, const Tensor& maximum, Scratch scratch,
                         StreamHandle stream) {
  const PackedRows rows = PacksOfMaximum(x, source);
  std::byte* const behind = scratch.data + RopeTableBytes(x, source);
  const Global<uint32_t> partials(reinterpret_cast<uint32_t*>(behind), rows.blocks(), "partials");
  if (rows.blocks() > 0) {
    SHALE_RETURN_IF_ERROR(WithFloat8Source(x, source, scratch, stream, [&](const auto& of) {
      using Source = std::decay_t<decltype(of)>;
      const bool aligned = rows.columns % kPackOf<typename Source::Element> == 0 && SourceAligned(x, source);
      const auto kernel = aligned ? PartialMaximaKernel<Source, true> : PartialMaximaKernel<Source, false>;
      return Launch("AbsMax", kernel, {.grid = dim3(static_cast<unsigned>(rows.blocks())), .block = dim3(kThreads)},
                    stream, of, partials, rows.packs(), rows.packs_of_row, rows.columns);
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
  return FindMaximum(op.x_RC, op.source, op.maximum_1, scratch, stream);
}

absl::Status Run(const QuantizeShard& op, Scratch scratch, StreamHandle stream) {
  const bool quantizes = op.stage == QuantizeShard::Stage::kQuantize;
  int64_t end = 0;  // Of what is written.
  for (size_t q = 0; q < op.parameters->size(); ++q) {
    const ElementRange part = op.PartOf(q);
    if (!quantizes) {
      const Tensor maximum = op.maxima_WQ.Slice(1, static_cast<int64_t>(q), 1).Reshape({1});
      SHALE_RETURN_IF_ERROR(FindMaximum(RowOf(op.weight_P, part), {}, maximum, scratch, stream));
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
