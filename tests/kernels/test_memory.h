// The memory that the operands of one test case lie in: buffers between red zones, with known contents before the op.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace shale::testing {

inline constexpr int64_t kRedZoneBytes = 512;

// Builds symbolic tensors (`where.symbol` numbers a buffer), and the bytes they have before the op. A strided operand
// is a Slice of a wider one: what lies between its rows is then watched like a red zone.
class TestMemory {
 public:
  TestMemory() = default;
  explicit TestMemory(uint64_t seed) : seed_(seed) {}

  // Values drawn uniformly from [low, high), rounded to `dtype` (a floating one).
  Tensor Random(DType dtype, std::initializer_list<int64_t> shape, double low = -1, double high = 1);
  // Whole numbers drawn uniformly from [low, high), u8, i16, i32 or i64.
  Tensor RandomIntegers(DType dtype, std::initializer_list<int64_t> shape, int64_t low, int64_t high);
  // These values, in order, rounded to any dtype.
  Tensor Values(DType dtype, std::initializer_list<int64_t> shape, absl::Span<const double> values);
  // These bits, for values that no double carries through (NaNs with their payload).
  Tensor FloatBits(std::initializer_list<int64_t> shape, absl::Span<const uint32_t> bits);
  // Every byte 0xFF, which is a NaN in all floating types: what an op does not overwrite, or reads first, shows.
  Tensor Output(DType dtype, std::initializer_list<int64_t> shape);

  // All buffers and red zones as they are before the op.
  const std::vector<std::byte>& image() const { return image_; }

  // `t`, or every operand of `op`, at its place in a copy of the image that starts at `base`.
  Tensor Bind(const Tensor& t, std::byte* base) const;
  Op Bind(const Op& op, std::byte* base) const;

  // The buffers in the order of their symbols: where each lies in the image.
  struct Buffer {
    int64_t begin, size_bytes;
  };
  const std::vector<Buffer>& buffers() const { return buffers_; }
  // Every operand of `op` in copies of the buffers, which need not lie as they do in the image.
  Op Bind(const Op& op, absl::Span<std::byte* const> buffers) const;

 private:
  Tensor Allocate(DType dtype, std::initializer_list<int64_t> shape);
  double Uniform(double low, double high);

  uint64_t seed_ = 1;
  std::vector<std::byte> image_ = std::vector<std::byte>(kRedZoneBytes, std::byte{0xC3});
  std::vector<Buffer> buffers_;
};

// A heap copy of an image, aligned as an arena is.
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

// An element of a bound tensor of any dtype, by its number in row-major order, and the places of all of them.
double ElementOf(const Tensor& t, int64_t index);
void SetElement(const Tensor& t, int64_t index, double value);
int64_t OffsetOf(const Tensor& t, int64_t index);

}  // namespace shale::testing
