// How pair_products.cc cuts a product up: the plan of Goto and van de Geijn (Anatomy of high-performance matrix
// multiplication, 2008).
//
// A task is a rectangle of c, and one thread's. For each block of k, the task's part of b is packed into panels, which
// stay in the second-level cache while rows of a meet them. Rows of a are read where they lie if the pairs along k do;
// otherwise they are packed too, some at a time, just before use.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention_sizes.h"
#include "kernels/cpu/products.h"

namespace shale::cpu {

inline constexpr int64_t kRowPanel = 16;  // Rows of a packed panel of a; one of b has kPanel columns.

// Rows [m_begin, m_end) and columns [n_begin, n_end) of c.
struct PairTask {
  int64_t m_begin, m_end, n_begin, n_end;
};

// What decides the order of sums, blocks of k, follows from the sizes alone; tasks also from the number of threads.
struct PairTiling {
  PairTiling(const ProductShape& shape, int threads);

  int64_t tasks() const { return m_parts * n_parts; }
  PairTask TaskOf(int64_t i) const;

  int64_t m, n, k;
  int64_t k_block;  // Even.
  int64_t m_parts, n_parts;
  int64_t most_rows, most_columns;  // Of a task.
  bool pack_rows;                   // Pairs of a do not lie side by side.
  int64_t packed_rows;              // Rows of a that are packed at a time.
  bool keeps_sums;                  // c's type cannot hold those of a block of k.

  // One thread's scratch, in bytes: panels of b, panels of a, and sums.
  int64_t b_bytes() const { return most_columns * k_block * 2; }
  int64_t a_bytes() const { return packed_rows * k_block * 2; }
  int64_t sums_bytes() const { return keeps_sums ? most_rows * most_columns * 4 : 0; }
  int64_t thread_bytes() const { return RoundUp(b_bytes() + a_bytes() + sums_bytes(), 256); }
};

}  // namespace shale::cpu
