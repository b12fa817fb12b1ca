// Operand b of a bf16 product in the order in which oneDNN's kernels read it. Private to kernels/cpu.
//
// A product otherwise has b brought into that order by every primitive that runs a part of it: packed once, it serves
// all rows of a, which makes forward products and those of a's gradient 5 to 15 % faster.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace shale::cpu {

// [N / 64][K / 2][64][2], filled up with zeros to multiples of 64 columns and 32 rows: oneDNN's format BA16a64b2a.
inline constexpr int64_t kPackedColumns = 64, kPackedRows = 32;

int64_t PackedColumnBlocks(int64_t n);
int64_t PackedBytes(int64_t k, int64_t n);

// b [K, N]; strides in elements, of which one is 1.
struct UnpackedOperand {
  const BFloat16* data = nullptr;
  int64_t k = 0, n = 0;
  int64_t stride_k = 0, stride_n = 0;
};
// Packs the columns of one block. `packed` is that of the whole operand, of PackedBytes.
void PackColumns(const UnpackedOperand& b, int64_t block, BFloat16* packed);

}  // namespace shale::cpu
