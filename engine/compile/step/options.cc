#include "engine/compile/step/options.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

// Returns the longest runs of consecutive chosen blocks, in order.
std::vector<Segment> Runs(const ChosenBlocks& chosen) {
  std::vector<Segment> runs;
  for (int64_t layer = 0; layer < chosen.layers; ++layer) {
    if (!chosen.Includes(layer)) continue;
    if (runs.empty() || runs.back().first + runs.back().blocks != layer) runs.push_back({.first = layer});
    ++runs.back().blocks;
  }
  return runs;
}

int64_t HeldOf(const std::vector<Segment>& runs, int64_t segment_blocks) {
  int64_t kept = 0, longest = 0;
  for (const Segment& run : runs) {
    kept += CeilDivide(run.blocks, segment_blocks);
    longest = std::max(longest, std::min(run.blocks, segment_blocks));
  }
  return kept + std::max<int64_t>(0, longest - 1);
}

}  // namespace

bool ChosenBlocks::Includes(int64_t layer) const {
  if (layer < 0) return false;
  if (first_layers > 0 || last_layers > 0) return layer < first_layers || layer >= layers - last_layers;
  return layer % every_nth == 0;
}

int64_t ChosenBlocks::LongestRun() const {
  int64_t longest = 0;
  for (const Segment& run : Runs(*this)) longest = std::max(longest, run.blocks);
  return longest;
}

std::vector<Segment> SegmentsOf(const ChosenBlocks& chosen, int64_t segment_blocks) {
  SHALE_CHECK(segment_blocks >= 1);
  std::vector<Segment> segments;
  if (segment_blocks == 1) return segments;
  for (const Segment& run : Runs(chosen)) {
    for (int64_t done = 0; done < run.blocks; done += segment_blocks) {
      segments.push_back({run.first + done, std::min(segment_blocks, run.blocks - done)});
    }
  }
  return segments;
}

int64_t BoundariesHeld(const ChosenBlocks& chosen, int64_t segment_blocks) {
  return HeldOf(Runs(chosen), segment_blocks);
}

int64_t SqrtSegmentBlocks(const ChosenBlocks& chosen) {
  const std::vector<Segment> runs = Runs(chosen);
  int64_t blocks = 0, longest = 0;
  for (const Segment& run : runs) {
    blocks += run.blocks;
    longest = std::max(longest, run.blocks);
  }
  SHALE_CHECK(longest >= 2) << "no two consecutive blocks are chosen";
  const double root = std::sqrt(static_cast<double>(blocks));
  int64_t best = 2;
  for (int64_t n = 3; n <= longest; ++n) {
    const int64_t held = HeldOf(runs, n), least = HeldOf(runs, best);
    const bool nearer = std::abs(static_cast<double>(n) - root) < std::abs(static_cast<double>(best) - root);
    if (held < least || (held == least && nearer)) best = n;
  }
  return best;
}

absl::Status CheckStepOptions(const StepOptions& options, bool narrow_weights, bool has_host_ops) {
  SHALE_CHECK(options.accumulation != Accumulation::kAuto && options.micro_batches >= 1);
  SHALE_CHECK(options.mesh.shard >= 1 && options.mesh.replicate >= 1);
  SHALE_RETURN_IF_ERROR(CheckCombination(options.strategy, options.accumulation));
  if (options.gradient_shards != DType::kFloat32) {
    SHALE_RETURN_IF_ERROR(CheckGradientShards(options.strategy, options.accumulation, options.mesh));
  }
  if (options.reduce != DType::kFloat32) SHALE_RETURN_IF_ERROR(CheckReduce(options.strategy, options.mesh));
  SHALE_RETURN_IF_ERROR(CheckStateOffload(options.offload_state, options.strategy, options.has_states(),
                                          narrow_weights && options.master != MasterWeights::kNone));
  SHALE_RETURN_IF_ERROR(CheckUpdateDevice(options.update_device, options.offload_state));
  const Optimizer* const composed = options.composed();
  if (composed != nullptr && (options.updates_on_host() || options.update == UpdateTime::kInBackward)) {
    return absl::InvalidArgumentError(absl::StrCat(EntryOf(composed->kind).name,
                                                   " updates neither on the HOST nor IN_BACKWARD; use optimizer.device "
                                                   "SAME and update AFTER_BACKWARD, or rule ADAMW_8BIT"));
  }
  if (options.clips_groups() && (options.update == UpdateTime::kInBackward || options.clipping != Clipping::kGlobal)) {
    return absl::InvalidArgumentError(
        "a group of the optimizer that is clipped by its own norm needs clipping GLOBAL and update AFTER_BACKWARD");
  }
  if (options.updates_on_host() && !has_host_ops) {
    return absl::FailedPreconditionError(
        "optimizer.device HOST needs kernels for the CPU, and this program was built without them; use SAME, or a "
        "program that also runs on device CPU");
  }
  return absl::OkStatus();
}

}  // namespace shale
