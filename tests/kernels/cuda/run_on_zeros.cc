#include "tests/kernels/cuda/run_on_zeros.h"

#include <cstddef>
#include <cstring>
#include <memory>

#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale::testing {
namespace {

// Places the operands of `op` one after the other, from `base` on. Returns how many bytes they need.
int64_t Lay(Op& op, std::byte* base) {
  int64_t end = 0;
  VisitOperands(op, [&](absl::string_view, Tensor& t, Access) {
    if (!t.present()) return;
    t.data = base + end;
    end += RoundUp(t.extent_bytes(), 256);
  });
  return end;
}

}  // namespace

absl::Status RunOnZeros(Op op, Ops& ops, Device& device, Stream& stream) {
  const int64_t size_bytes = Lay(op, nullptr), scratch_bytes = ops.ScratchBytes(op);
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> operands, device.Allocate(size_bytes));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> scratch, device.Allocate(scratch_bytes));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> zeros, device.AllocatePinned(size_bytes));
  std::memset(zeros->base(), 0, size_bytes);
  Lay(op, operands->base());
  absl::Status status = stream.Copy(operands->base(), zeros->base(), size_bytes);
  if (status.ok()) status = ops.Launch(op, {scratch->base(), scratch_bytes}, stream);
  const absl::Status finished = stream.Synchronize();
  return status.ok() ? finished : status;
}

}  // namespace shale::testing
