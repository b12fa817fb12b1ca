#include "kernels/op_backend.h"

namespace shale {

absl::Status Ops::Launch(const Op& op, Scratch scratch, Stream& stream) {
  VisitOperands(op, [&](absl::string_view, const Tensor& t, Access) {
    if (t.present()) stream.Meter(t.data, t.extent_bytes());
  });
  stream.Meter(scratch.data, scratch.size_bytes);
  return Enqueue(op, scratch, stream);
}

}  // namespace shale
