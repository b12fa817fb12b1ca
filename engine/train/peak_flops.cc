#include "engine/train/peak_flops.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "engine/runtime/world.h"
#include "kernels/check.h"
#include "kernels/device/ordinary_values.h"
#include "kernels/ops.h"

namespace shale {
namespace {

// Of each dimension. A CPU runs at its peak from the least on, a GPU where a product takes milliseconds.
constexpr int64_t kLeastSize = 1024, kLargestSize = 8192;
constexpr double kLongProductSeconds = 2e-3;
constexpr double kSeconds = 0.3;

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// The least seconds of one product of square matrices of `size` rows, of those within kSeconds.
absl::StatusOr<double> ProductSeconds(const Backend& backend, DType dtype, int64_t size) {
  MatMul product{.a = Tensor::Contiguous(dtype, {size, size}),
                 .b = Tensor::Contiguous(dtype, {size, size}),
                 .c_MN = Tensor::Contiguous(dtype, {size, size}),
                 .transpose_b = true};
  const int64_t matrix_bytes = size * size * SizeOf(dtype);
  const int64_t scratch_bytes = backend.CreateOps(/*device=*/nullptr)->ScratchBytes(product);
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<World> world,
                         World::Create(backend, {.ranks = 1}, 3 * matrix_bytes + scratch_bytes));
  double best = std::numeric_limits<double>::infinity();
  SHALE_RETURN_IF_ERROR(world->ForEachRank([&](int) -> absl::Status {
    RankRuntime& rank = world->rank(0);
    Stream& stream = rank.stream(StreamId::kCompute);
    std::byte* at = rank.arena().base();
    SHALE_RETURN_IF_ERROR(FillWithOrdinaryValues(rank.device(), stream, at, 3 * matrix_bytes));
    for (Tensor* t : {&product.a, &product.b, &product.c_MN}) {
      t->data = at;
      at += matrix_bytes;
    }
    SHALE_RETURN_IF_ERROR(rank.ops().Prepare(product));
    const auto start = std::chrono::steady_clock::now();
    do {
      const auto begin = std::chrono::steady_clock::now();
      SHALE_RETURN_IF_ERROR(rank.ops().Launch(product, {at, scratch_bytes}, stream));
      SHALE_RETURN_IF_ERROR(stream.Synchronize());
      best = std::min(best, Seconds(begin));
    } while (Seconds(start) < kSeconds);
    return absl::OkStatus();
  }));
  return best;
}

}  // namespace

absl::StatusOr<double> PeakFlops(const Backend& backend, DType dtype, int64_t ranks) {
  const auto sharing = static_cast<double>(backend.RanksSharing(ranks));
  if (const double nominal = backend.NominalPeakFlops(dtype); nominal > 0) return nominal / sharing;
  for (int64_t size = kLeastSize;; size *= 2) {
    SHALE_ASSIGN_OR_RETURN(const double seconds, ProductSeconds(backend, dtype, size));
    const auto rows = static_cast<double>(size);
    if (seconds >= kLongProductSeconds || size == kLargestSize) return 2 * rows * rows * rows / seconds / sharing;
  }
}

}  // namespace shale
