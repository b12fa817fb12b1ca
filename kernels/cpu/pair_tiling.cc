#include "kernels/cpu/pair_tiling.h"

namespace shale::cpu {
namespace {

constexpr int64_t kPanelBytes = 512 << 10;  // Of b, in half of a second-level cache of 1 MiB.

// Where part i of `parts` begins, in [0, size): at a multiple of `unit`. The first parts are the longest, by one unit
// at most, so that threads which take one after the other end at about the same time.
int64_t Begin(int64_t size, int64_t unit, int64_t parts, int64_t i) {
  const int64_t units = (size + unit - 1) / unit;
  return std::min(size, (units / parts * i + std::min(i, units % parts)) * unit);
}

}  // namespace

PairTiling::PairTiling(const ProductShape& shape, int threads) : m(shape.m), n(shape.n), k(shape.k) {
  const bool wide = shape.c_dtype == DType::kFloat32;
  // Sums that c itself can hold are cut often, so that many panels fit; others only where not one would.
  k_block = std::min(RoundUp(k, 2), wide ? int64_t{512} : kPanelBytes / 2 / kPanel);
  keeps_sums = !wide && k_block < k;
  pack_rows = shape.a_stride_k != 1 || k % 2 != 0;
  const int64_t most = std::max(kPanel, RoundDown(kPanelBytes / (2 * k_block), kPanel));
  n_parts = (n + most - 1) / most;
  m_parts = (m + 2047) / 2048;
  // Several tasks for each thread, as long as they are worth it: splitting the one dimension packs the other's operand
  // again for each part, so that fewer are better where both are packed.
  const int64_t panels = (n + kPanel - 1) / kPanel, row_panels = (m + kRowPanel - 1) / kRowPanel;
  const int64_t wanted = threads == 1 ? 1 : (pack_rows ? 2 : 4) * threads;
  while (tasks() < wanted) {
    const int64_t rows = m / m_parts, columns = n / n_parts;
    if ((!pack_rows || columns > rows) && columns > 64 && n_parts < panels) {
      n_parts = std::min(panels, std::max(n_parts + 1, wanted / m_parts));
    } else if (rows > 64 && m_parts < row_panels) {
      m_parts = std::min(row_panels, m_parts + 1);
    } else {
      break;
    }
  }
  // As many for each.
  if (n_parts > 1 && m_parts == 1) n_parts = std::min(panels, RoundUp(n_parts, threads));
  most_columns = (panels + n_parts - 1) / n_parts * kPanel;
  most_rows = (row_panels + m_parts - 1) / m_parts * kRowPanel;
  const int64_t block_rows = RoundDown(kPanelBytes / 8 / (2 * k_block), kRowPanel);
  packed_rows = pack_rows ? std::clamp<int64_t>(block_rows, kRowPanel, 64) : kRowPanel;
}

PairTask PairTiling::TaskOf(int64_t i) const {
  const int64_t row = i % m_parts, column = i / m_parts;
  return {Begin(m, kRowPanel, m_parts, row), Begin(m, kRowPanel, m_parts, row + 1), Begin(n, kPanel, n_parts, column),
          Begin(n, kPanel, n_parts, column + 1)};
}

}  // namespace shale::cpu
