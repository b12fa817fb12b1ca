// The largest magnitude of a matrix, and its conversion to fp8: of whole matrices, and of those in a shard of a flat
// group. All are bound by memory, except where they compute the matrix on the way: a piece of a row at a time, into the
// L1 cache.
//
// A transposed copy is made in tiles: a tile is quantized into a buffer that fits into the L1 cache, whose columns are
// then written as rows.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/float8.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/float8-inl.h"
#include "kernels/cpu/float8_source-inl.h"
#include "kernels/cpu/float8_source.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/float8.h"
#include "kernels/ops/float8.h"
#include "kernels/reference/index_checks.h"

#ifndef SHALE_KERNELS_CPU_FLOAT8_ONCE_
#define SHALE_KERNELS_CPU_FLOAT8_ONCE_
namespace shale::cpu {

constexpr int64_t kTile = 64;         // Rows and columns of a tile.
constexpr int64_t kPieceOfRow = 512;  // Numbers of a row that AbsMax computes at a time.

constexpr int32_t kInfinity = 0x7F800000, kNan = 0x7FC00000;

// Returns the magnitude of these bits, with one NaN in place of all.
inline float MagnitudeOf(int32_t bits) { return std::bit_cast<float>(bits > kInfinity ? kNan : bits); }

// The factors of the rows and of the columns of one block of a matrix.
struct BlockFactors {
  float of_row[kFloat8Block], of_column[kFloat8Block];
};

}  // namespace shale::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Returns the largest of the bits of |x|. Those of a NaN are larger than all others.
template <class T>
int32_t LargestBits(const T* x, int64_t count) {
  const hn::RebindToSigned<Floats> i;
  auto largest = hn::Zero(i);
  ForVectors(count, [&](int64_t at, auto lanes)
                        HWY_ATTR { largest = hn::Max(largest, hn::BitCast(i, hn::Abs(lanes.Load(x + at)))); });
  return hn::GetLane(hn::MaxOfLanes(i, largest));
}

int32_t LargestBitsOfRows(const SourceMatrix& x, int64_t begin, int64_t end) {
  int32_t largest = 0;
  const int64_t C = x.source.ColumnsOf(x.x_RC);
  const int64_t most = x.computes() ? kPieceOfRow : std::max<int64_t>(C, 1);
  ForElementType(x.x_RC.dtype, [&](auto element) HWY_ATTR {
    HWY_ALIGN decltype(element) buffer[kPieceOfRow];
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < C; c += most) {
        const int64_t count = std::min(most, C - c);
        largest = std::max(largest, LargestBits(SourceRow(x, {r, c, count}, buffer), count));
      }
    }
  });
  return largest;
}

// Quantizes elements of a row.
template <class Format, class T>
void QuantizeT(const T* x, int64_t count, float factor, Format* out) {
  const int64_t step = static_cast<int64_t>(hn::Lanes(Floats()));
  const Vector factors = Splat(factor);
  int64_t i = 0;
  for (; i + step <= count; i += step) StoreFloat8s(hn::Mul(Load(x + i), factors), out + i);
  for (; i < count; ++i) out[i] = SaturateToFloat8<Format>(ToFloat(x[i]) * factor);
}

// Quantizes rows [begin, end) of a band of at most kTile rows.
template <class Format, class T>
void QuantizeBand(const QuantizeFloat8& op, const SourceMatrix& matrix, float factor, int64_t begin, int64_t end) {
  const int64_t R = op.x_RC.dim(0), C = op.columns(), rows = end - begin;
  HWY_ALIGN Format tile[kTile * kTile];
  HWY_ALIGN T buffer[kTile];
  for (int64_t column = 0; column < C; column += kTile) {
    const int64_t columns = std::min(kTile, C - column);
    for (int64_t r = 0; r < rows; ++r) {
      const T* x = SourceRow(matrix, {begin + r, column, columns}, buffer);
      QuantizeT(x, columns, factor, tile + r * kTile);
      if (!op.out_RC.present()) continue;
      std::memcpy(op.out_RC.as<Format>() + (begin + r) * C + column, tile + r * kTile, static_cast<size_t>(columns));
    }
    if (!op.transposed_CR.present()) continue;
    for (int64_t c = 0; c < columns; ++c) {
      Format* to = op.transposed_CR.as<Format>() + (column + c) * R + begin;
      for (int64_t r = 0; r < rows; ++r) to[r] = tile[r * kTile + c];
    }
  }
}
void QuantizeRows(const QuantizeFloat8& op, const SourceMatrix& matrix, float factor, int64_t begin, int64_t end) {
  WithFloat8(op.format(), [&](auto code) HWY_ATTR {
    ForElementType(op.x_RC.dtype, [&](auto element) HWY_ATTR {
      QuantizeBand<decltype(code), decltype(element)>(op, matrix, factor, begin, end);
    });
  });
}

// Returns the factors of the block of a matrix that begins at x, and has rows `stride` numbers apart.
template <class T>
BlockFactors FactorsOf(const QuantizeFloat8& op, const T* x, int64_t stride, int64_t rows, int64_t columns) {
  int32_t of_row[kFloat8Block] = {}, of_column[kFloat8Block] = {};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int32_t bits = std::bit_cast<int32_t>(ToFloat(x[r * stride + c])) & 0x7FFFFFFF;
      of_row[r] = std::max(of_row[r], bits);
      of_column[c] = std::max(of_column[c], bits);
    }
  }
  if (op.scales == Float8Scales::kBlocks) {
    const int32_t largest = *std::max_element(of_row, of_row + rows);
    std::fill_n(of_row, rows, largest);
    std::fill_n(of_column, columns, largest);
  }
  BlockFactors factors;
  for (int64_t r = 0; r < rows; ++r) factors.of_row[r] = Float8Factor(op.format(), MagnitudeOf(of_row[r]));
  for (int64_t c = 0; c < columns; ++c) factors.of_column[c] = Float8Factor(op.format(), MagnitudeOf(of_column[c]));
  return factors;
}

// Quantizes the block that begins at this row and column, and writes its scales.
template <class Format, class T>
void QuantizeBlock(const QuantizeFloat8& op, const SourceMatrix& matrix, int64_t first_row, int64_t first_column) {
  const int64_t R = op.x_RC.dim(0), C = op.columns();
  const int64_t rows = std::min(kFloat8Block, R - first_row), columns = std::min(kFloat8Block, C - first_column);
  const bool computes = matrix.computes();
  HWY_ALIGN T block[kFloat8Block * kFloat8Block];
  for (int64_t r = 0; computes && r < rows; ++r) {
    SourceRow(matrix, {first_row + r, first_column, columns}, block + r * kFloat8Block);
  }
  const int64_t stride = computes ? kFloat8Block : op.x_RC.stride(0);
  const T* const x = computes ? block : op.x_RC.as<const T>() + first_row * stride + first_column;
  const BlockFactors factors = FactorsOf(op, x, stride, rows, columns);
  if (op.out_RC.present()) {
    const Float8ScaleMatrix scales = Float8ScaleMatrix::Of(op.scales, R, C);
    for (int64_t r = 0; r < rows; ++r) {
      const T* const row = x + r * stride;
      QuantizeT(row, columns, factors.of_row[r], op.out_RC.as<Format>() + (first_row + r) * C + first_column);
      op.out_scales.as<float>()[scales.PlaceOf(first_row + r, first_column)] = 1 / factors.of_row[r];
    }
  }
  if (op.transposed_CR.present()) {
    const Float8ScaleMatrix scales = Float8ScaleMatrix::Of(op.scales, C, R);
    for (int64_t c = 0; c < columns; ++c) {
      Format* const to = op.transposed_CR.as<Format>() + (first_column + c) * R + first_row;
      for (int64_t r = 0; r < rows; ++r) {
        to[r] = SaturateToFloat8<Format>(ToFloat(x[r * stride + c]) * factors.of_column[c]);
      }
      op.transposed_scales.as<float>()[scales.PlaceOf(first_column + c, first_row)] = 1 / factors.of_column[c];
    }
  }
}

// Quantizes all blocks that begin at this row.
void QuantizeBlocks(const QuantizeFloat8& op, const SourceMatrix& matrix, int64_t first_row) {
  WithFloat8(op.format(), [&](auto code) HWY_ATTR {
    ForElementType(op.x_RC.dtype, [&](auto element) HWY_ATTR {
      for (int64_t column = 0; column < op.columns(); column += kFloat8Block) {
        QuantizeBlock<decltype(code), decltype(element)>(op, matrix, first_row, column);
      }
    });
  });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {

HWY_EXPORT(LargestBitsOfRows);
HWY_EXPORT(QuantizeBlocks);
HWY_EXPORT(QuantizeRows);

namespace {

// Quantizes a matrix whose parts have scales of their own.
void QuantizeParts(const QuantizeFloat8& op, const SourceMatrix& matrix, Team& team) {
  for (const Tensor* scales : {&op.out_scales, &op.transposed_scales}) {
    if (scales->present()) std::memset(scales->data, 0, static_cast<size_t>(scales->extent_bytes()));
  }
  ParallelFor(team, op.x_RC.dim(0), kFloat8Block, [&](int64_t begin, int64_t) {
    HWY_DYNAMIC_DISPATCH(QuantizeBlocks)(op, matrix, begin);
  });
}

// Returns the largest of the magnitudes whose bits find(begin, end) returns for blocks of n items.
template <class Find>
float LargestOf(Team& team, int64_t n, int64_t block, const Find& find) {
  std::atomic<int32_t> largest = 0;
  ParallelFor(team, n, block, [&](int64_t begin, int64_t end) {
    const int32_t found = find(begin, end);
    int32_t before = largest.load(std::memory_order_relaxed);
    while (found > before && !largest.compare_exchange_weak(before, found, std::memory_order_relaxed)) {
    }
  });
  return MagnitudeOf(largest.load());
}

// Returns elements of a vector as a matrix of one row.
Tensor RowOf(const Tensor& vector, int64_t begin, int64_t end) {
  return vector.Slice(0, begin, end - begin).Reshape({1, end - begin});
}

// Returns the bytes of scratch for the table of a source that rotates.
int64_t TableBytes(const Tensor& x, const Float8Source& source, Team& team) {
  return source.kind == Float8Source::Kind::kRope ? RopeTableBytes(source.RopeOf(x), team) : 0;
}

// Returns the matrix of a source. If that rotates, fills its table in scratch.
SourceMatrix MatrixOf(const Tensor& x, const Float8Source& source, Scratch scratch, Team& team) {
  if (source.kind != Float8Source::Kind::kRope) return {x, source};
  return {x, source, FillRopeTable(source.RopeOf(x), scratch, team)};
}

// Returns the largest of a parameter's maxima of all ranks.
float MaximumOf(const QuantizeShard& op, int64_t parameter) {
  int32_t largest = 0;
  for (int64_t w = 0; w < op.maxima_WQ.dim(0); ++w) {
    const float maximum = op.maxima_WQ.as<const float>()[w * op.maxima_WQ.stride(0) + parameter];
    largest = std::max(largest, std::bit_cast<int32_t>(maximum));
  }
  return std::bit_cast<float>(largest);
}

}  // namespace

int64_t ScratchBytesOf(const AbsMax& op, const Context& context) {
  return TableBytes(op.x_RC, op.source, *context.team);
}
int64_t ScratchBytesOf(const QuantizeFloat8& op, const Context& context) {
  return TableBytes(op.x_RC, op.source, *context.team);
}

absl::Status Run(const AbsMax& op, Scratch scratch, const Context& context) {
  SHALE_RETURN_IF_ERROR(CheckPositionIds(op.kName, op.source.position_ids_BS));
  const SourceMatrix matrix = MatrixOf(op.x_RC, op.source, scratch, *context.team);
  *op.maximum_1.as<float>() = LargestOf(
      *context.team, op.x_RC.dim(0), RowsPerBlock(op.x_RC.dim(1)),
      [&](int64_t begin, int64_t end) { return HWY_DYNAMIC_DISPATCH(LargestBitsOfRows)(matrix, begin, end); });
  return absl::OkStatus();
}

absl::Status Run(const QuantizeFloat8& op, Scratch scratch, const Context& context) {
  SHALE_RETURN_IF_ERROR(CheckPositionIds(op.kName, op.source.position_ids_BS));
  const SourceMatrix matrix = MatrixOf(op.x_RC, op.source, scratch, *context.team);
  if (op.scales != Float8Scales::kOne) {
    QuantizeParts(op, matrix, *context.team);
    return absl::OkStatus();
  }
  const float factor = Float8Factor(op.format(), *op.maximum_1.as<const float>());
  ParallelFor(*context.team, op.x_RC.dim(0), kTile, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(QuantizeRows)(op, matrix, factor, begin, end);
  });
  *op.scale_1.as<float>() = 1 / factor;
  return absl::OkStatus();
}

absl::Status Run(const QuantizeShard& op, Scratch scratch, const Context& context) {
  const bool quantizes = op.stage == QuantizeShard::Stage::kQuantize;
  if (quantizes) std::memset(op.out_P.data, 0, static_cast<size_t>(op.out_P.elements()));
  for (size_t q = 0; q < op.parameters->size(); ++q) {
    const ElementRange part = op.PartOf(q);
    const int64_t n = part.end - part.begin;
    const Tensor weights = op.weight_P.Slice(0, part.begin, n);
    if (!quantizes) {
      op.maxima_WQ.as<float>()[q] = LargestOf(*context.team, n, kElementsPerBlock, [&](int64_t begin, int64_t end) {
        const Tensor row = RowOf(weights, begin, end);
        return HWY_DYNAMIC_DISPATCH(LargestBitsOfRows)({row, Float8Source()}, 0, 1);
      });
      continue;
    }
    const float factor = Float8Factor(op.out_P.dtype, MaximumOf(op, static_cast<int64_t>(q)));
    const Tensor codes = op.out_P.Slice(0, part.begin, n);
    ParallelFor(*context.team, n, kElementsPerBlock, [&](int64_t begin, int64_t end) {
      const QuantizeFloat8 row{.x_RC = RowOf(weights, begin, end), .out_RC = RowOf(codes, begin, end)};
      HWY_DYNAMIC_DISPATCH(QuantizeRows)(row, {row.x_RC, row.source}, factor, 0, 1);
    });
    op.scales_Q.as<float>()[q] = 1 / factor;
  }
  return absl::OkStatus();
}

absl::Status Run(const TransposeFloat8& op, Scratch scratch, const Context& context) {
  const int64_t R = op.x_RC.dim(0), C = op.x_RC.dim(1);
  const auto* const x = op.x_RC.as<const uint8_t>();
  auto* const y = op.y_CR.as<uint8_t>();
  ParallelFor(*context.team, R, kTile, [&](int64_t begin, int64_t end) {
    for (int64_t c = 0; c < C; ++c) {
      for (int64_t r = begin; r < end; ++r) y[c * R + r] = x[r * C + c];
    }
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
