// The memory in which the operands of a test case lie: buffers between red zones, with known contents before the op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale::testing {

inline constexpr int64_t kRedZoneBytes = 512;

// Builds symbolic tensors (`where.symbol` numbers a buffer), and the bytes that they have before the op. A strided
// operand is a Slice of a wider one: the gaps between its rows are then watched like a red zone.
class TestMemory {
 public:
  TestMemory() = default;
  explicit TestMemory(uint64_t seed) : seed_(seed) {}

  // Returns a tensor of values drawn uniformly from [low, high), rounded to `dtype` (a floating one, or fp8).
  Tensor Random(DType dtype, std::initializer_list<int64_t> shape, double low = -1, double high = 1);
  // Returns a tensor of integers drawn uniformly from [low, high). `dtype` is u8, i16, i32 or i64.
  Tensor RandomIntegers(DType dtype, std::initializer_list<int64_t> shape, int64_t low, int64_t high);
  // Returns a tensor of these values, in order, rounded to any dtype.
  Tensor Values(DType dtype, std::initializer_list<int64_t> shape, absl::Span<const double> values);
  // Returns a tensor of these bits, for values that no double preserves (NaNs with their payload).
  Tensor FloatBits(std::initializer_list<int64_t> shape, absl::Span<const uint32_t> bits);
  // Returns a tensor whose bytes are all 0xFF, which is a NaN in all floating types. It shows what an op does not
  // overwrite, or reads first.
  Tensor Output(DType dtype, std::initializer_list<int64_t> shape);

  // Returns all buffers and red zones as they are before the op.
  const std::vector<std::byte>& image() const { return image_; }

  // Return `t`, or `op` with all its operands, bound to the places in a copy of the image that starts at `base`.
  Tensor Bind(const Tensor& t, std::byte* base) const;
  Op Bind(const Op& op, std::byte* base) const;

  // Where each buffer lies in the image, in the order of the symbols.
  struct Buffer {
    int64_t begin, size_bytes;
  };
  const std::vector<Buffer>& buffers() const { return buffers_; }
  // Returns `op` with all its operands bound to copies of the buffers, which need not lie as they do in the image.
  Op Bind(const Op& op, absl::Span<std::byte* const> buffers) const;

 private:
  Tensor Allocate(DType dtype, std::initializer_list<int64_t> shape);
  double Uniform(double low, double high);

  uint64_t seed_ = 1;
  std::vector<std::byte> image_ = std::vector<std::byte>(kRedZoneBytes, std::byte{0xC3});
  std::vector<Buffer> buffers_;
};

// Owns a heap copy of an image, aligned like an arena.
class AlignedBytes {
 public:
  explicit AlignedBytes(absl::Span<const std::byte> bytes);
  ~AlignedBytes();
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

// Read an element of a bound tensor of any dtype, write it, and return its offset in elements. `index` is its number in
// row-major order.
double ElementOf(const Tensor& t, int64_t index);
void SetElement(const Tensor& t, int64_t index, double value);
int64_t OffsetOf(const Tensor& t, int64_t index);

}  // namespace shale::testing
