// How many scales a matrix in fp8 has, and where they lie. kernels/float8.h has the formats, and the formula of a
// scale.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/integers.h"

namespace shale {

// [Note: blockwise scales] A matrix [R, C] in fp8, where C is the dimension that a matmul sums over, has one scale, or
// one for each of its parts. A part at an edge may be smaller. One large number then costs only its neighbors bits, and
// the maximum of a part is found while it is read. This is the recipe of DeepSeek-V3 (section 3.3 of its report):
// activations and gradients have tiles, weights have blocks. Each part has the factor that [Note: scales of fp8] gives
// it. So scales are any fp32 numbers. DeepSeek rounds a scale to a power of two where it makes fp8 elements along one
// dimension out of those along the other. Here both are made of the same numbers in bf16 or f16, so that is not needed.
//
// A MatMul multiplies each product of two elements by the scales of both elements.
enum class Float8Scales : uint8_t {
  kOne,
  kTiles,   // One for each kFloat8Block elements of a row.
  kBlocks,  // One for each kFloat8Block x kFloat8Block elements.
};
inline constexpr int64_t kFloat8Block = 128;

constexpr absl::string_view ToString(Float8Scales scales) {
  return scales == Float8Scales::kOne ? "one" : scales == Float8Scales::kTiles ? "tiles" : "blocks";
}

// The matrix of the scales of a matrix [R, C]. These are the layouts that cuBLASLt reads
// (CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F and CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F).
//   kOne     [1, 1]
//   kTiles   [ceil(C / 128), R]
//   kBlocks  [ceil(R / 128), ceil(C / 128)], with rows that are filled up with zeros to a multiple of 4
struct Float8ScaleMatrix {
  Float8Scales scales = Float8Scales::kOne;
  int64_t rows = 1, columns = 1;

  static constexpr Float8ScaleMatrix Of(Float8Scales scales, int64_t R, int64_t C) {
    switch (scales) {
      case Float8Scales::kOne: break;
      case Float8Scales::kTiles: return {scales, CeilDivide(C, kFloat8Block), R};
      case Float8Scales::kBlocks: return {scales, CeilDivide(R, kFloat8Block), RoundUp(CeilDivide(C, kFloat8Block), 4)};
    }
    return {};
  }

  constexpr int64_t elements() const { return rows * columns; }
  // Returns the place of the scale of element (r, c).
  constexpr int64_t PlaceOf(int64_t r, int64_t c) const {
    switch (scales) {
      case Float8Scales::kOne: break;
      case Float8Scales::kTiles: return c / kFloat8Block * columns + r;
      case Float8Scales::kBlocks: return r / kFloat8Block * columns + c / kFloat8Block;
    }
    return 0;
  }
};

}  // namespace shale
