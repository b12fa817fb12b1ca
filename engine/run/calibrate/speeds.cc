#include "engine/run/calibrate/speeds.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "kernels/check.h"
#include "kernels/device/device.h"
#include "kernels/device/ordinary_values.h"
#include "kernels/op.h"
#include "kernels/ops/flat.h"

namespace shale {

absl::StatusOr<double> CopyBytesPerSecond(const Backend& backend) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  constexpr int kCopies = 6;
  SHALE_ASSIGN_OR_RETURN(const auto devices, backend.CreateDevices(/*ranks=*/1, /*synchronous=*/false));
  Device& device = *devices[0];
  const std::unique_ptr<Ops> ops = backend.CreateOps(/*ranks=*/1, &device);
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> arena, device.Allocate(2 * kBytes));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("copies"));
  SHALE_RETURN_IF_ERROR(FillWithOrdinaryValues(device, *stream, arena->base(), 2 * kBytes));
  Copy copy{.from = Tensor::Contiguous(DType::kFloat32, {kBytes / 4}),
            .to = Tensor::Contiguous(DType::kFloat32, {kBytes / 4})};
  copy.from.data = arena->base();
  copy.to.data = arena->base() + kBytes;
  SHALE_RETURN_IF_ERROR(ops->Prepare(copy));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kCopies; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    SHALE_RETURN_IF_ERROR(ops->Launch(copy, {}, *stream));
    SHALE_RETURN_IF_ERROR(stream->Synchronize());
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return 2 * static_cast<double>(kBytes) / best;
}

}  // namespace shale
