#include "kernels/op_backend.h"

#include "absl/strings/str_cat.h"
#include "kernels/ops/matmul.h"

namespace shale {

absl::Status CheckOneDTypeOfMatrices(absl::string_view device, const Op& op) {
  const auto* const matmul = op.As<MatMul>();
  if (matmul == nullptr || matmul->a.dtype == matmul->b.dtype || matmul->is_float8()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("MatMul: a is ", matmul->a.ToString(), " and b is ",
                                               matmul->b.ToString(), "; ", device,
                                               " multiplies matrices of one dtype: cast one of them"));
}

absl::Status Ops::Launch(const Op& op, Scratch scratch, Stream& stream) {
  if (absl::Status available = CheckAvailable(op); !available.ok()) return available;
  VisitOperands(op, [&](absl::string_view, const Tensor& t, Access) {
    if (t.present()) stream.Meter(t.data, t.extent_bytes());
  });
  stream.Meter(scratch.data, scratch.size_bytes);
  return Enqueue(op, scratch, stream);
}

}  // namespace shale
