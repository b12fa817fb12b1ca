// Operand b of a product in the order in which oneDNN's kernels read it. Private to kernels/cpu.
//
// A product otherwise has b brought into that order by every primitive that runs a part of it: packed once, it serves
// all rows of a, which makes forward products and those of a's gradient 5 to 15 % faster.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace shale::cpu {

// Blocks of 64 columns, filled up with zeros; in each, rows of 64 units of four bytes, filled up to a multiple of 16. A
// unit is an element of f32, or two of bf16 that are neighbours along k: [N / 64][K][64] or [N / 64][K / 2][64][2],
// oneDNN's formats BA16a64b and BA16a64b2a.
inline constexpr int64_t kPackedColumns = 64, kPackedUnits = 16;

int64_t PackedBytes(DType dtype, int64_t k, int64_t n);

// b [K, N] of f32 or bf16; strides in elements, of which one is 1.
struct UnpackedOperand {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t k = 0, n = 0;
  int64_t stride_k = 0, stride_n = 0;
};

// Panels are what threads share out: stretches of rows, or where b lies transposed columns, that are neighbours in
// memory.
int64_t PackedPanels(const UnpackedOperand& b);
// `packed` is that of the whole operand, of PackedBytes, and begins a cache line.
void PackPanel(const UnpackedOperand& b, int64_t panel, std::byte* packed);

}  // namespace shale::cpu
