#include "engine/train/peak_flops.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>

#include "kernels/check.h"
#include "kernels/device/device.h"
#include "kernels/device/ordinary_values.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// The sizes of each dimension. A CPU reaches its peak at the least size, a GPU when a matmul takes milliseconds.
constexpr int64_t kLeastSize = 1024, kLargestSize = 8192;
constexpr double kLongMatMulSeconds = 2e-3;
constexpr double kSeconds = 0.3;

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// Multiplies square matrices of `size` rows for kSeconds and returns the seconds that the fastest matmul took.
absl::StatusOr<double> ProductSeconds(Device& device, Ops& ops, DType dtype, int64_t size) {
  MatMul matmul{.a = Tensor::Contiguous(dtype, {size, size}),
                .b = Tensor::Contiguous(dtype, {size, size}),
                .c_MN = Tensor::Contiguous(dtype, {size, size}),
                .transpose_b = true};
  const int64_t matrix_bytes = size * size * SizeOf(dtype), scratch_bytes = ops.ScratchBytes(matmul);
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> arena, device.Allocate(3 * matrix_bytes + scratch_bytes));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("matmuls"));
  std::byte* at = arena->base();
  SHALE_RETURN_IF_ERROR(FillWithOrdinaryValues(device, *stream, at, 3 * matrix_bytes));
  for (Tensor* t : {&matmul.a, &matmul.b, &matmul.c_MN}) {
    t->data = at;
    at += matrix_bytes;
  }
  SHALE_RETURN_IF_ERROR(ops.Prepare(matmul));
  double best = std::numeric_limits<double>::infinity();
  const auto start = std::chrono::steady_clock::now();
  do {
    const auto begin = std::chrono::steady_clock::now();
    SHALE_RETURN_IF_ERROR(ops.Launch(matmul, {at, scratch_bytes}, *stream));
    SHALE_RETURN_IF_ERROR(stream->Synchronize());
    best = std::min(best, Seconds(begin));
  } while (Seconds(start) < kSeconds);
  return best;
}

}  // namespace

absl::StatusOr<double> PeakFlops(const Backend& backend, DType dtype, int64_t ranks) {
  const auto sharing = static_cast<double>(backend.RanksSharing(ranks));
  if (const double nominal = backend.NominalPeakFlops(dtype); nominal > 0) return nominal / sharing;
  // Measure on a separate device, with the ops of one of `ranks` ranks.
  SHALE_ASSIGN_OR_RETURN(const auto devices, backend.CreateDevices(/*ranks=*/1, /*synchronous=*/false));
  const std::unique_ptr<Ops> ops = backend.CreateOps(ranks, devices[0].get());
  for (int64_t size = kLeastSize;; size *= 2) {
    SHALE_ASSIGN_OR_RETURN(const double seconds, ProductSeconds(*devices[0], *ops, dtype, size));
    const auto rows = static_cast<double>(size);
    if (seconds >= kLongMatMulSeconds || size == kLargestSize) return 2 * rows * rows * rows / seconds / sharing;
  }
}

}  // namespace shale
