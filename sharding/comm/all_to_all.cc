#include "sharding/comm/all_to_all.h"

#include <vector>

#include "kernels/check.h"
#include "kernels/element_range.h"

namespace shale {
namespace {

std::vector<ElementRange> RowsOf(const Tensor& t_WN) {
  std::vector<ElementRange> rows;
  for (int64_t r = 0; r < t_WN.dim(0); ++r) rows.push_back({r * t_WN.stride(0), r * t_WN.stride(0) + t_WN.dim(1)});
  return rows;
}

// Returns the elements from the first row to the last, with those between rows.
Tensor Spanned(const Tensor& t_WN) {
  Tensor spanned = Tensor::Contiguous(t_WN.dtype, {t_WN.extent()}, t_WN.data);
  spanned.where = t_WN.where;
  return spanned;
}

}  // namespace

absl::Status AllToAllRows(Communicator& communicator, const Tensor& from_WN, const Tensor& to_WN, Stream& stream) {
  SHALE_CHECK(from_WN.rank == 2 && to_WN.rank == 2) << from_WN.ToString() << " " << to_WN.ToString();
  SHALE_CHECK(from_WN.stride(1) == 1 && to_WN.stride(1) == 1);
  const std::vector<ElementRange> sent = RowsOf(from_WN), received = RowsOf(to_WN);
  return communicator.AllToAll({Spanned(from_WN), sent}, {Spanned(to_WN), received}, stream);
}

}  // namespace shale
