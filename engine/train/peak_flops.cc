#include "engine/train/peak_flops.h"

#include <algorithm>
#include <chrono>

#include "engine/runtime/world.h"
#include "kernels/check.h"
#include "kernels/ops.h"

namespace shale {
namespace {

constexpr int64_t kSize = 1024;  // Of each dimension: large enough to run at a CPU's peak.
constexpr double kSeconds = 0.3;

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace

absl::StatusOr<double> PeakFlops(const Backend& backend, DType dtype) {
  if (const double nominal = backend.NominalPeakFlops(dtype); nominal > 0) return nominal;
  MatMul product{.a = Tensor::Contiguous(dtype, {kSize, kSize}),
                 .b = Tensor::Contiguous(dtype, {kSize, kSize}),
                 .c_MN = Tensor::Contiguous(dtype, {kSize, kSize}),
                 .transpose_b = true};
  const int64_t matrix_bytes = kSize * kSize * SizeOf(dtype);
  const int64_t scratch_bytes = backend.CreateOps(/*device=*/nullptr)->ScratchBytes(product);
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<World> world,
                         World::Create(backend, {.ranks = 1}, 3 * matrix_bytes + scratch_bytes));
  double best = 0;
  SHALE_RETURN_IF_ERROR(world->ForEachRank([&](int) -> absl::Status {
    RankRuntime& rank = world->rank(0);
    std::byte* at = rank.arena().base();
    for (Tensor* t : {&product.a, &product.b, &product.c_MN}) {
      t->data = at;
      at += matrix_bytes;
    }
    SHALE_RETURN_IF_ERROR(rank.ops().Prepare(product));
    Stream& stream = rank.stream(StreamId::kCompute);
    const auto start = std::chrono::steady_clock::now();
    do {
      const auto begin = std::chrono::steady_clock::now();
      SHALE_RETURN_IF_ERROR(rank.ops().Launch(product, {at, scratch_bytes}, stream));
      SHALE_RETURN_IF_ERROR(stream.Synchronize());
      best = std::max(best, 2.0 * kSize * kSize * kSize / Seconds(begin));
    } while (Seconds(start) < kSeconds);
    return absl::OkStatus();
  }));
  return best;
}

}  // namespace shale
