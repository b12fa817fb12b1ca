// A matrix product of one shape: its tiles, and for those the primitives of oneDNN. Private to kernels/cpu.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/packed_operand.h"
#include "kernels/cpu/product_tiles.h"
#include "kernels/cpu/products.h"

namespace shale::cpu {

// The product of that shape, by one of oneDNN's kernels. May throw dnnl::error.
dnnl::matmul::primitive_desc DescribeProduct(const ProductShape& s, const dnnl::memory::desc& b);

// Thread-safe; runs one after another. While it is made, prepared or run, oneDNN must take OpenMP to have one thread.
class TiledProduct {
 public:
  // For a team of at most so many OpenMP threads, the calling one included. May throw dnnl::error.
  TiledProduct(const ProductShape& shape, int threads);

  int64_t scratch_bytes(bool packed_elsewhere) const {
    return (packed_elsewhere ? 0 : all_packed_bytes()) + (onednn_bytes_ + gathered_bytes_) * team_;
  }
  // 0: b is not packed as a whole.
  int64_t whole_packed_bytes() const { return gathers() ? 0 : packed_bytes_; }

  // Makes the primitives, unless that is done. May throw dnnl::error.
  void Prepare();
  // As Prepare, if nobody has called it.
  dnnl_status_t Run(const ProductOperands& operands);

 private:
  // Tiles of one size.
  struct Kind {
    int64_t rows, columns;
    dnnl::matmul::primitive_desc description;
    dnnl::matmul primitive;  // Empty until prepared.
  };
  struct Tile {
    ProductTile place;  // In c.
    size_t kind;
  };
  // Columns of b and of c that are computed before those of the next; scratch holds two pieces of packed b in turn.
  struct Piece {
    int64_t n = 0, columns = 0;
    bool odd = false;
    int64_t first_tile = 0, end_tile = 0;
  };
  // The memory objects point at the operands of the tile that the thread is running.
  struct Memory {
    dnnl::memory a, b, bias, c, scratch;
  };
  struct Thread {
    dnnl::stream stream;
    std::vector<Memory> of_kind;
  };

  bool packs() const { return packed_bytes_ > 0; }
  // Whether tiles of c are computed in scratch, for oneDNN's packed products need one without gaps.
  bool gathers() const { return pieces_.size() > 1; }
  int64_t all_packed_bytes() const { return packed_bytes_ * (gathers() ? 2 : 1); }
  std::byte* PackedAt(const Piece& piece, const ProductOperands& operands) const {
    if (operands.packed_b.data != nullptr) return operands.packed_b.data;
    return operands.scratch.data + (piece.odd ? packed_bytes_ : 0);
  }
  UnpackedOperand OperandOf(const Piece& piece, const ProductOperands& operands) const;
  void AddTiles(Piece& piece, int threads);
  size_t KindOf(const ProductTile& tile);
  void PrepareLocked();
  void RunPieces(const ProductOperands& operands, std::atomic<dnnl_status_t>& failure);
  dnnl_status_t RunTile(const Piece& piece, const Tile& tile, int thread_number, const ProductOperands& operands);

  const ProductShape shape_;
  std::vector<Piece> pieces_;
  std::vector<Tile> tiles_;
  int team_ = 1;  // Threads that find a tile.
  // Scratch: the pieces of packed b, of so many bytes each, or nothing; then for each thread what oneDNN wants, and a
  // tile of c if it gathers.
  int64_t packed_bytes_ = 0, onednn_bytes_ = 0, gathered_bytes_ = 0;

  std::mutex mutex_;  // Guards what Prepare makes.
  std::vector<Kind> kinds_;
  std::vector<Thread> per_thread_;  // Empty until prepared.
};

}  // namespace shale::cpu
