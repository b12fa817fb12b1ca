// OneDnnMatMuls: matmuls by oneDNN. Only onednn_matmuls.cc, tiled_matmul.h and .cc, and onednn.h use oneDNN's API.
// Private to kernels/cpu.
//
// oneDNN splits small matmuls with a long K over its threads and adds the parts, so its bits would depend on the number
// of threads. Here a matmul is divided into tiles (matmul_tiles.h), and each tile is a primitive for one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cpu/matmul_shape.h"
#include "kernels/cpu/team.h"

namespace shale::cpu {

class TiledMatMul;

// Makes the oneDNN primitives of each shape once, which takes about 0.1 ms each, and keeps them as long as it lives.
// Their memory, some 100 KB per shape, lies outside every arena. Where oneDNN falls back on its gemm (a large
// transposed operand a, or a c with gaps), a run also takes some MB of heap per thread. Thread-safe; matmuls of one
// shape run one after another.
class OneDnnMatMuls {
 public:
  // Matmuls run on the threads of the team.
  explicit OneDnnMatMuls(std::shared_ptr<Team> team);
  ~OneDnnMatMuls();

  // Returns whether oneDNN multiplies bf16 with instructions of this processor. If not, shapes must be f32.
  bool has_bfloat16() const { return has_bfloat16_; }

  // Returns the bytes of scratch that Run needs; `packed_elsewhere` means that packed_b is given. This and the
  // functions below return an error if oneDNN refuses the matmul.
  absl::StatusOr<int64_t> ScratchBytes(const MatMulShape& shape, bool packed_elsewhere);
  // Returns the size in bytes of b, packed all at once as the tiles read it, or 0 if b is not packed, or only in
  // pieces. A size above 0 is the same for every M.
  absl::StatusOr<int64_t> PackedBytes(const MatMulShape& shape);
  // Makes the primitives of this shape, unless they exist.
  absl::Status Prepare(const MatMulShape& shape);
  // Computes the matmul, preparing it first if needed. Returns Internal if packed_b or scratch is too small.
  absl::Status Run(const MatMulShape& shape, const MatMulOperands& operands);

 private:
  absl::StatusOr<TiledMatMul*> Find(const MatMulShape& shape);

  const std::shared_ptr<Team> team_;
  bool has_bfloat16_ = false;
  std::mutex mutex_;  // Guards the map. Entries are never removed.
  std::map<MatMulShape, std::unique_ptr<TiledMatMul>> matmuls_;
};

}  // namespace shale::cpu
