// Matrix products by oneDNN, whose API this and tiled_product.h alone know. Private to kernels/cpu.
//
// oneDNN splits small products with a long K over its threads and adds the parts, so that its bits depend on their
// number. Here a product is cut into tiles (product_tiles.h), and each is a primitive for one thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/op_backend.h"
#include "kernels/tensor.h"

namespace shale::cpu {

// c = a b + bias, or c += a b, for strided a [M, K], b [K, N] and c [M, N]: all that primitives are made for. Strides
// in elements; of a's, and of b's, one is 1.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_stride_m = 0, a_stride_k = 0;
  int64_t b_stride_k = 0, b_stride_n = 0;
  int64_t c_stride_m = 0;
  DType dtype = DType::kFloat32;    // Of a, b and bias: f32 or bf16.
  DType c_dtype = DType::kFloat32;  // f32 or bf16.
  bool bias = false;
  bool accumulate = false;
  auto operator<=>(const ProductShape&) const = default;
};

struct ProductOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  // When the shape has one.
  void* c = nullptr;
  Scratch packed_b;  // PackedBytes of memory in which b is packed, or already lies packed; null: in scratch.
  bool b_is_packed = false;
  Scratch scratch;  // ScratchBytes of it.
};

class TiledProduct;

// Keeps the primitives that it has made, by shape, for its whole life: making one takes about 0.1 ms. They lie outside
// every arena, some 100 KB a shape; and where oneDNN falls back on its gemm (a transposed and large, or c with gaps),
// that takes some MB a thread of the heap while it runs. Thread-safe; products of one shape run one after another.
class Products {
 public:
  // Products run on `threads` OpenMP threads, the calling one included.
  explicit Products(int threads);
  ~Products();

  // Whether this processor multiplies bf16 (AVX-512 does). Otherwise shapes must be f32.
  bool has_bfloat16() const { return has_bfloat16_; }

  // An error when oneDNN refuses the product.
  absl::StatusOr<int64_t> ScratchBytes(const ProductShape& shape, bool packed_elsewhere);
  // Of the whole of b, packed as these tiles want it, whatever M is. 0: b is not packed, or not as a whole.
  absl::StatusOr<int64_t> PackedBytes(const ProductShape& shape);
  absl::Status Prepare(const ProductShape& shape);
  absl::Status Run(const ProductShape& shape, const ProductOperands& operands);

 private:
  absl::StatusOr<TiledProduct*> Find(const ProductShape& shape);

  const int threads_;
  bool has_bfloat16_ = false;
  std::mutex mutex_;  // Guards the map; products are never removed.
  std::map<ProductShape, std::unique_ptr<TiledProduct>> products_;
};

}  // namespace shale::cpu
