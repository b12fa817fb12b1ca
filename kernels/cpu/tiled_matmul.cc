#include "kernels/cpu/tiled_matmul.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "kernels/cpu/one_openmp_thread.h"
#include "kernels/cpu/packed_operand.h"
#include "kernels/integers.h"

namespace shale::cpu {
namespace {

// A multiple of a cache line, so that no two threads write to the same line.
constexpr int64_t kScratchAlignment = 256;

dnnl::memory::format_tag PackedFormat(DType dtype) {
  using Tag = dnnl::memory::format_tag;
  return dtype == DType::kBFloat16 ? Tag::BA16a64b2a : Tag::BA16a64b;
}

// Returns the shape of a tile of c with `rows` rows and `columns` columns. A gathered tile lies alone in memory,
// without gaps.
MatMulShape TileShape(MatMulShape s, int64_t rows, int64_t columns, bool gathered) {
  if (gathered) s.c_stride_m = columns;
  s.m = rows;
  s.n = columns;
  return s;
}

// Returns whether b is packed. M must be large enough to pay for packing, and a large b of f32 gains nothing. oneDNN
// must choose this format itself, because its kernels are slow in formats that they would not choose; it does so where
// a and c have no gaps. The answer does not depend on the number of threads.
bool Packs(const MatMulShape& s) {
  constexpr int64_t kLeastM = 512;
  if (s.m < kLeastM || (s.dtype == DType::kFloat32 && IsPackedInPieces(s))) return false;
  const int64_t columns = PieceColumns(s).front();
  for (int64_t rows = kLeastPackedRows; rows <= kMostPackedRows; rows *= 2) {
    const MatMulShape tile = TileShape(s, rows, columns, columns < s.n);
    const auto chosen = DescribeMatMul(tile, OperandB(tile, dnnl::memory::format_tag::any)).weights_desc();
    if (chosen != OperandB(tile, PackedFormat(tile.dtype))) return false;
  }
  return true;
}

// Returns whether oneDNN's kernels for this matmul sum over k in an order that depends on the tile. Those with AMX do:
// they divide k into parts, whose length depends on the rows of the tile, and add up the sums of the parts. The kernels
// that take parts of a transposed a divide k always in the same way.
bool OrderDependsOnTile(const MatMulShape& s, TileOrder order) {
  if (s.dtype != DType::kBFloat16 || order == TileOrder::kTransposedA) return false;
  return absl::StrContains(DescribeMatMul(s, OperandB(s)).impl_info_str(), "amx");
}

// Copies rows of bytes from one matrix to another.
void CopyRows(const std::byte* from, int64_t from_stride, int64_t rows, int64_t row_bytes, std::byte* to,
              int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row) std::memcpy(to + row * to_stride, from + row * from_stride, row_bytes);
}

}  // namespace

dnnl::matmul::primitive_desc DescribeMatMul(const MatMulShape& s, const dnnl::memory::desc& b) {
  using dnnl::memory;
  const memory::desc a({s.m, s.k}, OneDnnType(s.dtype), memory::dims{s.a_stride_m, s.a_stride_k});
  const memory::desc c({s.m, s.n}, OneDnnType(s.c_dtype), memory::dims{s.c_stride_m, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.scale != 1) attributes.set_output_scales(0, {s.scale});
  if (s.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  if (!s.bias) return {dnnl::matmul::desc(a, b, c), attributes, OneDnnEngine()};
  const memory::desc bias({1, s.n}, OneDnnType(s.dtype), memory::dims{s.n, 1});
  return {dnnl::matmul::desc(a, b, bias, c), attributes, OneDnnEngine()};
}

TiledMatMul::TiledMatMul(const MatMulShape& shape, int threads) : shape_(shape) {
  if (Packs(shape)) {
    int64_t n = 0;
    for (int64_t columns : PieceColumns(shape)) {
      pieces_.push_back({.n = n, .columns = columns, .odd = pieces_.size() % 2 == 1});
      packed_bytes_ = std::max(packed_bytes_, PackedBytes(shape.dtype, shape.k, columns));
      n += columns;
    }
  } else {
    pieces_.push_back({.n = 0, .columns = shape.n});
  }
  const TileOrder order = gathers()               ? TileOrder::kGathered
                          : packs()               ? TileOrder::kPackedB
                          : shape.a_stride_k != 1 ? TileOrder::kTransposedA
                                                  : TileOrder::kPlain;
  const int tile_threads = OrderDependsOnTile(shape, order) ? kAnyThreads : threads;
  int64_t most_tiles = 0;
  for (Piece& piece : pieces_) {
    AddTiles(piece, order, tile_threads);
    most_tiles = std::max(most_tiles, piece.end_tile - piece.first_tile);
  }
  threads_ = static_cast<int>(std::min<int64_t>(threads, most_tiles));
}

void TiledMatMul::AddTiles(Piece& piece, TileOrder order, int threads) {
  MatMulShape part = shape_;
  part.n = piece.columns;
  piece.first_tile = static_cast<int64_t>(tiles_.size());
  for (MatMulTile tile : TilesOf(part, order, threads)) {
    tile.n += piece.n;
    tiles_.push_back({tile, KindOf(tile)});
  }
  piece.end_tile = static_cast<int64_t>(tiles_.size());
}

size_t TiledMatMul::KindOf(const MatMulTile& tile) {
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i].rows == tile.rows && kinds_[i].columns == tile.columns) return i;
  }
  const MatMulShape s = TileShape(shape_, tile.rows, tile.columns, gathers());
  const dnnl::memory::desc b = packs() ? OperandB(s, PackedFormat(s.dtype)) : OperandB(s);
  kinds_.push_back({tile.rows, tile.columns, DescribeMatMul(s, b), {}});
  const auto scratch = static_cast<int64_t>(kinds_.back().description.scratchpad_desc().get_size());
  onednn_bytes_ = std::max(onednn_bytes_, RoundUp(scratch, kScratchAlignment));
  if (gathers()) {
    const int64_t tile_bytes = tile.rows * tile.columns * SizeOf(shape_.c_dtype);
    gathered_bytes_ = std::max(gathered_bytes_, RoundUp(tile_bytes, kScratchAlignment));
  }
  return kinds_.size() - 1;
}

void TiledMatMul::Prepare() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!per_thread_.empty()) return;
  const auto memory = [](const dnnl::memory::desc& desc) {
    return dnnl::memory(desc, OneDnnEngine(), DNNL_MEMORY_NONE);
  };
  std::vector<Thread> per_thread(threads_);
  for (Kind& kind : kinds_) {
    const auto& description = kind.description;
    kind.primitive = dnnl::matmul(description);
    for (Thread& thread : per_thread) {
      thread.of_kind.push_back({memory(description.src_desc()), memory(description.weights_desc()),
                                memory(description.bias_desc()), memory(description.dst_desc()),
                                memory(description.scratchpad_desc())});
    }
  }
  for (Thread& thread : per_thread) thread.stream = dnnl::stream(OneDnnEngine());
  per_thread_ = std::move(per_thread);
}

dnnl_status_t TiledMatMul::Run(const MatMulOperands& operands, Team& team) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::atomic<dnnl_status_t> failure = dnnl_success;
  RunPieces(operands, team, failure);
  return failure;
}

// While the tiles of a piece are computed, the next piece is packed. Chunks come after the tiles: small parts of work
// at the end keep threads from waiting long for one another.
void TiledMatMul::RunPieces(const MatMulOperands& operands, Team& team, std::atomic<dnnl_status_t>& failure) {
  const auto run_tile = [&](const Piece& piece, const Tile& tile, int thread) {
    const OneOpenMpThread one_thread;
    const dnnl_status_t status = RunTile(piece, tile, thread, operands);
    if (status != dnnl_success) failure = status;
  };
  const bool packs_now = packs() && !operands.b_is_packed;
  for (size_t i = packs_now ? 0 : 1; i <= pieces_.size(); ++i) {
    const Piece now = i > 0 ? pieces_[i - 1] : Piece{};
    const Piece next = packs_now && i < pieces_.size() ? pieces_[i] : Piece{};
    const UnpackedOperand b = OperandOf(next, operands);
    const int64_t tiles = now.end_tile - now.first_tile, chunks = PackedChunks(b);
    team.RunParts(threads_, tiles + chunks, [&](int64_t part, int thread) {
      if (part < tiles) {
        run_tile(now, tiles_[now.first_tile + part], thread);
      } else {
        PackChunk(b, part - tiles, PackedAt(next, operands));
      }
    });
  }
}

UnpackedOperand TiledMatMul::OperandOf(const Piece& piece, const MatMulOperands& operands) const {
  const auto* const b = static_cast<const std::byte*>(operands.b);
  return {b + piece.n * shape_.b_stride_n * SizeOf(shape_.dtype),
          shape_.dtype,
          shape_.k,
          piece.columns,
          shape_.b_stride_k,
          shape_.b_stride_n};
}

// Uses the C calls of oneDNN, which do not throw.
dnnl_status_t TiledMatMul::RunTile(const Piece& piece, const Tile& tile, int thread_number,
                                   const MatMulOperands& operands) {
  const int64_t m = tile.place.m, n = tile.place.n;
  const int64_t size = SizeOf(shape_.dtype), c_size = SizeOf(shape_.c_dtype);
  const int64_t row_bytes = tile.place.columns * c_size, c_stride_bytes = shape_.c_stride_m * c_size;
  std::byte* const c = static_cast<std::byte*>(operands.c) + m * c_stride_bytes + n * c_size;
  std::byte* const scratch = operands.scratch.data + (operands.packed_b.data != nullptr ? 0 : all_packed_bytes()) +
                             thread_number * (onednn_bytes_ + gathered_bytes_);
  std::byte* const gathered = scratch + onednn_bytes_;

  Thread& thread = per_thread_[thread_number];
  Memory& memory = thread.of_kind[tile.kind];
  // oneDNN takes all operands as void*, even those that it only reads.
  const auto set = [](dnnl::memory& to, const void* base, int64_t offset_bytes) {
    return dnnl_memory_set_data_handle(to.get(),
                                       const_cast<std::byte*>(static_cast<const std::byte*>(base)) + offset_bytes);
  };
  dnnl_exec_arg_t arguments[5] = {
      {DNNL_ARG_SRC, memory.a.get()}, {DNNL_ARG_WEIGHTS, memory.b.get()}, {DNNL_ARG_DST, memory.c.get()}};
  int count = 3;
  dnnl_status_t status = set(memory.a, operands.a, m * shape_.a_stride_m * size);
  if (status == dnnl_success) {
    status = packs() ? set(memory.b, PackedAt(piece, operands), PackedBytes(shape_.dtype, shape_.k, n - piece.n))
                     : set(memory.b, operands.b, n * shape_.b_stride_n * size);
  }
  if (status == dnnl_success) status = set(memory.c, gathers() ? gathered : c, 0);
  if (status == dnnl_success && shape_.bias) {
    status = set(memory.bias, operands.bias, n * size);
    arguments[count++] = {DNNL_ARG_BIAS, memory.bias.get()};
  }
  if (status == dnnl_success && onednn_bytes_ > 0) {
    status = set(memory.scratch, scratch, 0);
    arguments[count++] = {DNNL_ARG_SCRATCHPAD, memory.scratch.get()};
  }
  if (status != dnnl_success) return status;
  if (gathers() && shape_.accumulate) CopyRows(c, c_stride_bytes, tile.place.rows, row_bytes, gathered, row_bytes);
  status = dnnl_primitive_execute(kinds_[tile.kind].primitive.get(), thread.stream.get(), count, arguments);
  if (gathers()) CopyRows(gathered, row_bytes, tile.place.rows, row_bytes, c, c_stride_bytes);
  return status;
}

}  // namespace shale::cpu
