#include "kernels/cpu/packed_matmul.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/packed_kernels.h"
#include "kernels/cpu/touch.h"
#include "kernels/integers.h"

namespace shale::cpu {
namespace {

// A block of a strip of b fits into the L1 cache with room to spare, and a tile's block of a into the L2 cache.
constexpr int64_t kMostBlock = 320, kMostTileRows = 240;
// The bound on the columns of a tile whose sums lie apart from c.
constexpr int64_t kMostSumColumns = 1024;
// With fewer rows b is packed in pieces. Larger ones are packed in pieces, too.
constexpr int64_t kLeastWholeM = 512, kMostWholeBytes = int64_t{32} << 20;
// Bounds on a piece: it stays in the caches, and is wide enough to use each copied block of a many times.
constexpr int64_t kMostPieceBytes = int64_t{4} << 20, kMostPieceColumns = 1024;
constexpr int64_t kFloat = sizeof(float), kAlignment = 256;
// A chunk of b that one thread packs: this many bytes of each of its rows in memory.
constexpr int64_t kStretchBytes = 4096, kChunkRows = 32;

// Divides `size` into the fewest parts of at most `most`, and returns the length of a part as a multiple of `unit`.
int64_t EvenPart(int64_t size, int64_t most, int64_t unit) {
  const int64_t parts = CeilDivide(size, std::max(most, unit));
  return std::max(unit, RoundUp(CeilDivide(size, std::max<int64_t>(parts, 1)), unit));
}

void Scale(float scale, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] *= scale;
}

template <class T>
void WidenRows(const T* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns; ++i) to[row * to_stride + i] = ToFloat(from[row * from_stride + i]);
  }
}

// Multiplies the numbers of strips, which begin at row (column) r and at k of an operand, by the scales of its parts.
// `width` is that of a strip, `count` the rows that exist.
void ScaleParts(const Float8ScaleMatrix& matrix, const float* scales, int64_t r, int64_t k, int64_t count,
                int64_t depth, int64_t width, int64_t strip_stride, float* strips) {
  for (int64_t i = 0; i < count; ++i) {
    float* const strip = strips + i / width * strip_stride + i % width;
    for (int64_t j = 0; j < depth; ++j) strip[j * width] *= scales[matrix.PlaceOf(r + i, k + j)];
  }
}

}  // namespace

PackedMatMul::PackedMatMul(const MatMulShape& shape, int threads) : shape_(shape), threads_(threads) {
  const StripSizes strips = StripSizesOfTarget();
  strip_rows_ = strips.rows;
  strip_columns_ = strips.columns;
  block_ = EvenPart(shape.k, kMostBlock, 8);
  const int64_t strip_bytes = strip_columns_ * kFloat;  // For one k.
  const int64_t all_bytes = CeilDivide(shape.n, strip_columns_) * strip_bytes * shape.k;
  whole_ = shape.m >= kLeastWholeM && all_bytes <= kMostWholeBytes;
  piece_columns_ = whole_ ? RoundUp(shape.n, strip_columns_) : EvenPart(shape.n, kMostPieceColumns, strip_columns_);
  const int64_t fitting = kMostPieceBytes / (piece_columns_ * kFloat);
  piece_k_ = whole_ ? shape.k : std::max(RoundDown(fitting, block_), block_);
  piece_k_ = std::max<int64_t>(1, std::min(piece_k_, shape.k));
  column_pieces_ = CeilDivide(shape.n, piece_columns_);
  k_pieces_ = std::max<int64_t>(1, CeilDivide(shape.k, piece_k_));
  piece_bytes_ = RoundUp(piece_columns_ * piece_k_ * kFloat, kAlignment);

  // Every thread gets the same number of tiles, as far as there are rows and columns. Tiles are full rows of a piece,
  // if possible, so that no row of a is copied twice.
  const int64_t row_strips = CeilDivide(shape.m, strip_rows_);
  const int64_t least_tiles = CeilDivide(shape.m, kMostTileRows);
  const int64_t row_tiles = std::min(RoundUp(least_tiles, threads), CeilDivide(row_strips, 4));
  tile_rows_ = CeilDivide(row_strips, row_tiles) * strip_rows_;
  int64_t column_tiles = CeilDivide(threads, CeilDivide(shape.m, tile_rows_));
  if (sums_are_apart() && k_pieces_ == 1) {
    column_tiles = std::max(column_tiles, CeilDivide(piece_columns_, kMostSumColumns));
  }
  const int64_t column_strips = piece_columns_ / strip_columns_;
  tile_columns_ = CeilDivide(column_strips, std::min(column_tiles, column_strips)) * strip_columns_;
}

int64_t PackedMatMul::blocks() const { return std::max<int64_t>(1, CeilDivide(shape_.k, block_)); }

// Returns whether c cannot hold sums of f32 between blocks, or before the first.
bool PackedMatMul::sums_are_apart() const {
  return shape_.c_dtype != DType::kFloat32 && (blocks() > 1 || shape_.accumulate);
}

// The sums of all rows and the columns of a piece, if they must last from one piece to the next.
int64_t PackedMatMul::shared_sums_bytes() const {
  if (!sums_are_apart() || k_pieces_ == 1) return 0;
  return RoundUp(shape_.m * piece_columns_ * kFloat, kAlignment);
}

// A block of a, and the sums of a tile unless they are shared.
int64_t PackedMatMul::thread_bytes() const {
  const bool own_sums = sums_are_apart() && k_pieces_ == 1;
  return RoundUp(tile_rows_ * block_ * kFloat, kAlignment) +
         (own_sums ? RoundUp(tile_rows_ * tile_columns_ * kFloat, kAlignment) : 0);
}

int64_t PackedMatMul::scratch_bytes(bool packed_elsewhere) const {
  const int64_t packed = packed_elsewhere ? 0 : piece_bytes_ * std::min<int64_t>(pieces(), 2);
  return packed + shared_sums_bytes() + thread_bytes() * threads_;
}

PackedMatMul::Piece PackedMatMul::PieceAt(int64_t i, const MatMulOperands& operands) const {
  Piece piece;
  if (i < 0 || i >= pieces()) return piece;
  piece.n = i / k_pieces_ * piece_columns_;
  piece.columns = std::min(piece_columns_, shape_.n - piece.n);
  piece.k = i % k_pieces_ * piece_k_;
  piece.depth = std::min(piece_k_, shape_.k - piece.k);
  piece.tiles = CeilDivide(shape_.m, tile_rows_) * CeilDivide(piece.columns, tile_columns_);
  const int64_t stretch = kStretchBytes / SizeOf(shape_.b_dtype());
  piece.chunks = shape_.b_stride_n == 1 ? CeilDivide(piece.columns, stretch) * CeilDivide(piece.depth, kChunkRows)
                                        : CeilDivide(piece.columns, strip_columns_) * CeilDivide(piece.depth, stretch);
  std::byte* const packed =
      operands.packed_b.data != nullptr ? operands.packed_b.data : operands.scratch.data + i % 2 * piece_bytes_;
  piece.packed = reinterpret_cast<float*>(packed);
  return piece;
}

void PackedMatMul::PackChunk(const Piece& piece, int64_t chunk, const MatMulOperands& operands) const {
  const int64_t stretch = kStretchBytes / SizeOf(shape_.b_dtype());
  const bool along_n = shape_.b_stride_n == 1;
  const int64_t n_step = along_n ? stretch : strip_columns_, k_step = along_n ? kChunkRows : stretch;
  const int64_t across = CeilDivide(piece.columns, n_step);
  const int64_t n = chunk % across * n_step, k = chunk / across * k_step;
  const int64_t columns = std::min(n_step, piece.columns - n), depth = std::min(k_step, piece.depth - k);
  const StripSource b{operands.b, shape_.b_dtype(), shape_.b_stride_n, shape_.b_stride_k};
  const StripSource from = b.At(piece.n + n, piece.k + k);
  const int64_t stride = along_n ? shape_.b_stride_k : shape_.b_stride_n;
  const int64_t rows = along_n ? depth : columns, length = along_n ? columns : depth;
  switch (SizeOf(from.dtype)) {
    case 1: TouchRows(static_cast<const uint8_t*>(from.data), stride, rows, length); break;
    case 2: TouchRows(static_cast<const uint16_t*>(from.data), stride, rows, length); break;
    default: TouchRows(static_cast<const float*>(from.data), stride, rows, length);
  }
  float* const to = piece.packed + n * piece.depth + k * strip_columns_;
  PackColumnStrips(from, columns, depth, to, strip_columns_ * piece.depth);
  if (shape_.scales != Float8Scales::kOne) {
    ScaleParts(Float8ScaleMatrix::Of(shape_.scales, shape_.n, shape_.k), operands.scale_b, piece.n + n, piece.k + k,
               columns, depth, strip_columns_, strip_columns_ * piece.depth, to);
  }
}

void PackedMatMul::RunTile(const Piece& piece, int64_t tile, int thread, const MatMulOperands& operands) const {
  const int64_t across = CeilDivide(piece.columns, tile_columns_);
  const int64_t m = tile / across * tile_rows_, n = tile % across * tile_columns_;
  const int64_t rows = std::min(tile_rows_, shape_.m - m), columns = std::min(tile_columns_, piece.columns - n);
  const int64_t c_offset = m * shape_.c_stride_m + piece.n + n;
  std::byte* const c = static_cast<std::byte*>(operands.c) + c_offset * SizeOf(shape_.c_dtype);
  std::byte* scratch =
      operands.scratch.data + (operands.packed_b.data != nullptr ? 0 : piece_bytes_ * std::min<int64_t>(pieces(), 2));
  float* const shared_sums = reinterpret_cast<float*>(scratch);
  scratch += shared_sums_bytes() + thread * thread_bytes();
  float* const a = reinterpret_cast<float*>(scratch);
  Sums sums{reinterpret_cast<float*>(c), shape_.c_stride_m};
  if (shared_sums_bytes() > 0) {
    sums = {shared_sums + m * piece_columns_ + n, piece_columns_};
  } else if (sums_are_apart()) {
    sums = {reinterpret_cast<float*>(scratch + RoundUp(tile_rows_ * block_ * kFloat, kAlignment)), tile_columns_};
  }

  const StripSource source{operands.a, shape_.a_dtype(), shape_.a_stride_m, shape_.a_stride_k};
  const bool parts = shape_.scales != Float8Scales::kOne;
  const Float8ScaleMatrix scales_of_a = Float8ScaleMatrix::Of(Float8Scales::kTiles, shape_.m, shape_.k);
  const float scale = shape_.a_float8.has_value() ? *operands.scale_a * *operands.scale_b : shape_.scale;
  for (int64_t k = 0; k < std::max<int64_t>(piece.depth, 1); k += block_) {
    const int64_t at = piece.k + k, depth = std::min(block_, piece.depth - k);
    const bool first = at == 0, last = at + depth >= shape_.k;
    PackRowStrips(source.At(m, at), rows, depth, a, strip_rows_ * depth);
    if (parts) {
      ScaleParts(scales_of_a, operands.scale_a, m, at, rows, depth, strip_rows_, strip_rows_ * depth, a);
    } else if (scale != 1) {
      Scale(scale, RoundUp(rows, strip_rows_) * depth, a);
    }
    if (first && shape_.accumulate && sums_are_apart()) {
      if (shape_.c_dtype == DType::kBFloat16) {
        WidenRows(reinterpret_cast<const BFloat16*>(c), shape_.c_stride_m, rows, columns, sums.data, sums.stride);
      } else {
        WidenRows(reinterpret_cast<const Float16*>(c), shape_.c_stride_m, rows, columns, sums.data, sums.stride);
      }
    }
    StripMatMul part{.rows = rows, .columns = columns, .k = depth, .a = a};
    part.b = piece.packed + n * piece.depth + k * strip_columns_;
    part.b_strip_stride = strip_columns_ * piece.depth;
    if (!first || shape_.accumulate) {
      part.before = sums.data;
      part.before_stride = sums.stride;
    }
    if (last && shape_.bias) {
      part.bias = static_cast<const std::byte*>(operands.bias) + (piece.n + n) * SizeOf(shape_.dtype);
      part.bias_dtype = shape_.dtype;
    }
    const bool to_c = last || !sums_are_apart();
    part.c = to_c ? static_cast<void*>(c) : sums.data;
    part.c_dtype = to_c ? shape_.c_dtype : DType::kFloat32;
    part.c_stride = to_c ? shape_.c_stride_m : sums.stride;
    MultiplyStrips(part);
  }
}

// While the tiles of a piece are computed, the next piece is packed.
void PackedMatMul::RunPieces(const MatMulOperands& operands, Team& team) const {
  for (int64_t i = operands.b_is_packed ? 1 : 0; i <= pieces(); ++i) {
    const Piece now = PieceAt(i - 1, operands), next = PieceAt(operands.b_is_packed ? -1 : i, operands);
    team.RunParts(threads_, now.tiles + next.chunks, [&](int64_t part, int thread) {
      if (part < now.tiles) {
        RunTile(now, part, thread, operands);
      } else {
        PackChunk(next, part - now.tiles, operands);
      }
    });
  }
}

absl::Status PackedMatMul::Run(const MatMulOperands& operands, Team& team) const {
  const bool packed_elsewhere = operands.packed_b.data != nullptr;
  const auto too_small = [&](int64_t wanted, const char* what, int64_t got) {
    return absl::InternalError(absl::StrCat("a matmul of M=", shape_.m, " N=", shape_.n, " K=", shape_.k, " needs ",
                                            wanted, " bytes ", what, "; got ", got));
  };
  if (packed_elsewhere && (!whole_ || operands.packed_b.size_bytes < piece_bytes_)) {
    return too_small(whole_packed_bytes(), "for packed b", operands.packed_b.size_bytes);
  }
  const int64_t scratch = scratch_bytes(packed_elsewhere);
  if (operands.scratch.size_bytes < scratch) return too_small(scratch, "of scratch", operands.scratch.size_bytes);
  RunPieces(operands, team);
  return absl::OkStatus();
}

}  // namespace shale::cpu
