// Runs an Update: divides the shard among threads. Every rule makes one pass over memory.
#include "kernels/cpu/update.h"

#include <algorithm>
#include <variant>

#include "hwy/cache_control.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/update.h"
#include "kernels/step_scalars.h"

namespace shale::cpu {

static_assert(kElementsPerBlock % kQuantizedBlock == 0, "threads must not divide a block of 8-bit states");

DecayRun DecayRunAt(const Update& op, int64_t begin, int64_t end) {
  if (op.decayed == nullptr) return {.end = end, .decays = false};
  // The first range that ends after `begin`.
  const auto range = std::upper_bound(op.decayed->begin(), op.decayed->end(), op.shard_begin + begin,
                                      [](int64_t at, const ElementRange& r) { return at < r.end; });
  if (range == op.decayed->end()) return {.end = end, .decays = false};
  const int64_t from = range->begin - op.shard_begin;
  if (from > begin) return {.end = std::min(end, from), .decays = false};
  return {.end = std::min(end, range->end - op.shard_begin), .decays = true};
}

absl::Status Run(const Update& op, Scratch scratch, const Context& context) {
  if (op.update_5.as<const float>()[kUpdateSkip] != 0) return absl::OkStatus();
  ParallelFor(*context.team, op.weight_P.dim(0), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    std::visit([&](const auto& rule) { UpdateElements(rule, op, begin, end); }, op.rule);
    hwy::FlushStream();
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
