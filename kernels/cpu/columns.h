// Column sums. They are the gradient of a parameter that every row of a matrix shares.
//
// Rows are divided into blocks, at most 64 whatever the number of threads. Each block adds up its rows in order, into a
// row of partial sums in scratch. The partial sums are then added up in the order of the blocks.
#pragma once

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"

namespace shale::cpu {

inline Partition RowPartition(int64_t rows) { return PartitionOf(rows, /*least=*/16, /*most=*/64); }

// Returns the bytes of scratch that the partial sums of `columns` columns need.
inline int64_t ColumnScratchBytes(int64_t rows, int64_t columns) {
  return RowPartition(rows).blocks() * columns * static_cast<int64_t>(sizeof(float));
}

// Computes out[c] (+)= sum over b of partials[b * stride + c], for `columns` columns.
void AddPartials(const float* partials, int64_t blocks, int64_t stride, int64_t columns, float* out, bool accumulate,
                 Team& team);

}  // namespace shale::cpu
