// TiledMatMul: a matmul of one shape, divided into tiles, and the oneDNN primitives that compute them. Private to
// kernels/cpu.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/onednn_matmuls.h"
#include "kernels/cpu/packed_operand.h"

namespace shale::cpu {

// Returns the description of one oneDNN primitive that computes a matmul of shape `s`, with operand b described by `b`.
// May throw dnnl::error.
dnnl::matmul::primitive_desc DescribeMatMul(const MatMulShape& s, const dnnl::memory::desc& b);

// Thread-safe; calls run one after another. Code that creates or prepares a TiledMatMul must first make OpenMP report
// one thread to oneDNN (OneOpenMpThread). Run does so itself, on each thread that computes tiles.
class TiledMatMul {
 public:
  // Runs on at most `threads` threads of a team. May throw dnnl::error.
  TiledMatMul(const MatMulShape& shape, int threads);

  int64_t scratch_bytes(bool packed_elsewhere) const {
    return (packed_elsewhere ? 0 : all_packed_bytes()) + (onednn_bytes_ + gathered_bytes_) * threads_;
  }
  // Returns the size of b packed all at once, or 0 if b is not packed, or only in pieces.
  int64_t whole_packed_bytes() const { return gathers() ? 0 : packed_bytes_; }

  // Makes the primitives, unless they exist. May throw dnnl::error.
  void Prepare();
  // Computes the matmul and returns oneDNN's status. Does not throw. REQUIRES: Prepare() has returned.
  dnnl_status_t Run(const MatMulOperands& operands, Team& team);

 private:
  // Tiles of one size, which share a primitive.
  struct Kind {
    int64_t rows, columns;
    dnnl::matmul::primitive_desc description;
    dnnl::matmul primitive;  // Empty until prepared.
  };
  struct Tile {
    MatMulTile place;  // In c.
    size_t kind;
  };
  // A range of columns of b and c, computed before the next range. Scratch holds two pieces of packed b, which are used
  // in turn.
  struct Piece {
    int64_t n = 0, columns = 0;
    bool odd = false;
    int64_t first_tile = 0, end_tile = 0;
  };
  // Memory objects that point at the operands of the tile that the thread is running.
  struct Memory {
    dnnl::memory a, b, bias, c, scratch;
  };
  struct Thread {
    dnnl::stream stream;
    std::vector<Memory> of_kind;
  };

  bool packs() const { return packed_bytes_ > 0; }
  // Returns whether tiles of c are computed in scratch and copied, because oneDNN's packed matmuls need a c without
  // gaps.
  bool gathers() const { return pieces_.size() > 1; }
  int64_t all_packed_bytes() const { return packed_bytes_ * (gathers() ? 2 : 1); }
  std::byte* PackedAt(const Piece& piece, const MatMulOperands& operands) const {
    if (operands.packed_b.data != nullptr) return operands.packed_b.data;
    return operands.scratch.data + (piece.odd ? packed_bytes_ : 0);
  }
  UnpackedOperand OperandOf(const Piece& piece, const MatMulOperands& operands) const;
  void AddTiles(Piece& piece, TileOrder order, int threads);
  size_t KindOf(const MatMulTile& tile);
  void RunPieces(const MatMulOperands& operands, Team& team, std::atomic<dnnl_status_t>& failure);
  dnnl_status_t RunTile(const Piece& piece, const Tile& tile, int thread_number, const MatMulOperands& operands);

  const MatMulShape shape_;
  std::vector<Piece> pieces_;
  std::vector<Tile> tiles_;
  int threads_ = 1;  // How many threads have a tile to compute.
  // Layout of scratch: packed_bytes_ for each piece of packed b (one piece, or two in turn; none if b is packed
  // elsewhere), then for each thread onednn_bytes_ for oneDNN and gathered_bytes_ for a tile of c.
  int64_t packed_bytes_ = 0, onednn_bytes_ = 0, gathered_bytes_ = 0;

  std::mutex mutex_;  // Guards what Prepare makes, and is held during Run.
  std::vector<Kind> kinds_;
  std::vector<Thread> per_thread_;  // Empty until prepared.
};

}  // namespace shale::cpu
