// PackedMatMul: matmuls by kernels of our own. Private to kernels/cpu.
//
// oneDNN 2.6 has no matmul kernel for packed operands below AVX-512. Each tile of a matmul goes to its gemm there,
// which packs both operands again: on a Zen 3 (AVX2, two threads), tiles of 256 x 512 run at 122 (forward) and 94
// (backward) GFLOP/s of the 139 that undivided matmuls reach. It has no bf16 matmul below AVX-512 at all, and where
// bf16 instructions are slow it uses them nevertheless: 166 GFLOP/s against 296 in fp32 on an Emerald Rapids without
// AMX.
//
// The structure is that of GotoBLAS and BLIS. Operand b is copied once into strips that all threads share. A thread
// computes a tile of c: it copies a block of the tile's rows of a into strips, and multiplies each strip with the
// strips of b, with all sums in registers. Copying widens bf16, f16 and fp8 to f32. If b is large or M is small, b is
// copied piece by piece, and each piece is multiplied while it is in the cache; the next piece is copied at the same
// time.
//
// Sums over k are divided into blocks. A block is summed in ascending order, starting from zero, and then added to the
// blocks before it (in f32). The division depends on K alone, so the bits of c depend neither on the number of threads
// nor on M, N, tiles and pieces.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/matmul_shape.h"
#include "kernels/cpu/team.h"

namespace shale::cpu {

// A matmul of one shape, which is divided for `threads` threads. Allocates nothing. Copyable, thread-safe.
class PackedMatMul {
 public:
  PackedMatMul(const MatMulShape& shape, int threads);

  // Returns the bytes of scratch that Run needs; `packed_elsewhere` means that packed_b is given.
  int64_t scratch_bytes(bool packed_elsewhere) const;
  // Returns the size in bytes of b packed all at once, or 0 if it is packed in pieces. A size above 0 is the same for
  // every M.
  int64_t whole_packed_bytes() const { return whole_ ? piece_bytes_ : 0; }
  // Computes the matmul on `threads` threads of the team. Returns Internal if packed_b or scratch is too small.
  absl::Status Run(const MatMulOperands& operands, Team& team) const;

 private:
  // A range of columns and of k of operand b.
  struct Piece {
    int64_t n = 0, columns = 0, k = 0, depth = 0;
    int64_t tiles = 0, chunks = 0;
    float* packed = nullptr;
  };
  // Where the f32 sums of c [rows, columns of the piece] are before the last block is added.
  struct Sums {
    float* data = nullptr;
    int64_t stride = 0;
  };

  int64_t pieces() const { return column_pieces_ * k_pieces_; }
  int64_t blocks() const;
  bool sums_are_apart() const;
  int64_t shared_sums_bytes() const;
  int64_t thread_bytes() const;
  Piece PieceAt(int64_t i, const MatMulOperands& operands) const;
  void PackChunk(const Piece& piece, int64_t chunk, const MatMulOperands& operands) const;
  void RunTile(const Piece& piece, int64_t tile, int thread, const MatMulOperands& operands) const;
  void RunPieces(const MatMulOperands& operands, Team& team) const;

  MatMulShape shape_;
  int threads_;
  int64_t strip_rows_, strip_columns_;
  int64_t block_;                    // The k of a block; the last may be shorter.
  bool whole_;                       // b is one piece.
  int64_t piece_columns_, piece_k_;  // Of a piece; the last may be smaller.
  int64_t column_pieces_, k_pieces_;
  int64_t piece_bytes_;               // Of a packed piece.
  int64_t tile_rows_, tile_columns_;  // Of a tile; the last may be smaller.
};

}  // namespace shale::cpu
