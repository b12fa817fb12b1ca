#include "engine/compile/step/passes.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "kernels/ops/update.h"

namespace shale {
namespace {

bool HasUpdates(const StepProgram& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(), [](const Instruction& instruction) {
    const Op* op = std::get_if<Op>(&instruction.action);
    return op != nullptr && op->Is<Update>();
  });
}

}  // namespace

absl::Status RunPasses(const StepOptions& options, const JobState& state, const Ops& ops, const WorkLimits& limits,
                       StepProgram& program) {
  SHALE_RETURN_IF_ERROR(limits.Check());
  const bool updates = HasUpdates(program);  // Programs that only evaluate or generate have none.
  // First, because all others move and copy what it gathers.
  GatherFloat8(program, state);
  // Then, because it finds the visits by what stands side by side, before copies work ahead too.
  OverlapCollectives(program, options.prefetch);
  // Before OffloadState, which copies only what updates on the device need.
  if (updates && options.updates_on_host()) {
    std::vector<Tensor> host_weights;
    for (const GroupState& g : state.groups) host_weights.push_back(g.host_weight);
    UpdateOnHost(program, host_weights);
  }
  // After OverlapCollectives, because weights are copied one visit ahead of where their all-gather is issued.
  if (options.offload_state.any()) OffloadState(program);
  if (updates && options.prepares_weights_once) {
    // After OffloadState, whose copies change weights within a loop.
    SHALE_RETURN_IF_ERROR(QuantizeOnce(program, limits));
    // After QuantizeOnce, because it packs what no iteration writes. Before AddScratch, because an op that finds b
    // packed needs less scratch.
    if (options.accumulation == Accumulation::kLayered) SHALE_RETURN_IF_ERROR(PackOnce(program, ops, limits));
  }
  // After all passes that move ops to another stream or change what they find packed.
  SHALE_RETURN_IF_ERROR(AddScratch(program, ops, limits));
  SHALE_RETURN_IF_ERROR(limits.Check());
  // After all other passes that find visits: its copies work for units that compute at another time.
  SHALE_RETURN_IF_ERROR(OffloadActivations(program, options.activations.offload, limits));
  SHALE_RETURN_IF_ERROR(limits.Check());
  // Last, because it looks for buffers that end where others begin: a tensor that is offloaded ends early.
  WorkInPlace(program);
  return absl::OkStatus();
}

}  // namespace shale
