// The options of the step compiler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/compile/optimizer/optimizer.h"
#include "engine/compile/step/options_enums.h"
#include "sharding/mesh.h"
#include "sharding/placement.h"

namespace shale {

// Says which of the tensors that backward needs are recomputed, and which are offloaded.
struct ActivationOptions {
  CheckpointingPreset preset = CheckpointingPreset::kNone;
  // The blocks that the preset applies to: the first `first_layers` and the last `last_layers` blocks if either number
  // is above 0, else blocks 0, n, 2n and so on with n = every_nth. In other blocks the preset recomputes nothing.
  int64_t every_nth = 1;
  int64_t first_layers = 0;
  int64_t last_layers = 0;
  // Number of consecutive chosen blocks that keep one boundary together.
  int64_t segment_blocks = 1;
  // Name patterns (engine/strings/pattern.h) of further values to recompute, in any unit but the last.
  std::vector<std::string> patterns;
  // Name patterns of values that are kept in host memory until their backward (engine/compile/step/passes.h).
  std::vector<std::string> offload;

  // Returns the blocks that the preset applies to in a model of `layers` blocks.
  ChosenBlocks Chosen(int64_t layers) const { return {layers, every_nth, first_layers, last_layers}; }
};

// Dynamic loss scaling: PrepareUpdate says how the scale changes from step to step (kernels/ops/scalars.h).
struct LossScaling {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // In updates.
};

struct StepOptions {
  Strategy strategy = Strategy::kFullShard;
  Accumulation accumulation = Accumulation::kSharded;  // Not kAuto.
  Mesh mesh;                                           // Its rows hold copies of the state.
  int64_t micro_batches = 1;                           // K, accumulation steps.
  int64_t prefetch = 1;                                // Units gathered ahead of the one in use.
  bool reshard_after_forward = true;
  // Weights that do not change between micro-batches are quantized once for all of them (QuantizeOnce), and with
  // LAYERED packed once (PackOnce; engine/compile/step/passes.h). If false, each micro-batch does so again, in memory
  // that others use too.
  bool prepares_weights_once = true;
  MasterWeights master = MasterWeights::kFloat32;
  // The dtype of the shard of the gradient that accumulates over the step: f32, or bf16, which is rounded
  // stochastically. REQUIRES: CheckGradientShards accepts it.
  DType gradient_shards = DType::kFloat32;
  // The dtype in which gradients leave a rank to be summed over a row of the mesh: f32, or bf16, which is rounded
  // stochastically. REQUIRES: CheckReduce accepts it.
  DType reduce = DType::kFloat32;
  // The gradients of a group that leave in bf16 go in parts of at least so many bytes, and at most so many parts: what
  // a rank receives of a part is in memory beside what it sends. In fp32 they are computed in such pieces too
  // (RoundInBackward, engine/compile/step/passes.h).
  int64_t sent_part_bytes = int64_t{16} << 20;
  static constexpr int64_t kMostSentParts = 8;
  // Multiplies the gradients of the loss by a scale. Goes with kAfterBackward and Clipping::kGlobal.
  std::optional<LossScaling> loss_scaling;
  StateOffload offload_state;  // REQUIRES: CheckStateOffload accepts it.
  UpdateDevice update_device = UpdateDevice::kSame;
  ActivationOptions activations;
  Optimizer optimizer;                      // Of parameters that belong to none of optimizer_groups.
  std::vector<Optimizer> optimizer_groups;  // By ParameterGroup::optimizer_group.
  // Seed of stochastic rounding. Only programs whose updates round so depend on it.
  uint64_t seed = 1;
  UpdateTime update = UpdateTime::kAfterBackward;
  Clipping clipping = Clipping::kGlobal;
  // Name patterns of parameters without weight decay. Vectors and scalars never decay.
  std::vector<std::string> no_decay_patterns;
  // Adds buffers for a copy of what a checkpoint saves, from which it is written while the next steps run
  // (CompileSnapshot).
  bool snapshot = false;
  // Whether the reduced gradients of a step stay in memory until the next step, so that they can be read. If not, their
  // buffers live only from the first write to the update, and share bytes with other buffers of the step.
  bool keep_gradients = false;

  // Returns what updates a flat group: a ParameterGroup or a GroupState.
  template <class Group>
  const Optimizer& OptimizerOf(const Group& group) const {
    return OptimizerOf(group.optimizer_group).Of(group.block_matrices);
  }
  // Returns an optimizer by ParameterGroup::optimizer_group.
  const Optimizer& OptimizerOf(int optimizer_group) const {
    return optimizer_group < 0 ? optimizer : optimizer_groups[optimizer_group];
  }
  // Returns whether an optimizer keeps states that offload_state can move.
  bool has_states() const {
    const auto keeps = [](const Optimizer& o) { return o.has_states_of_elements(); };
    return keeps(optimizer) || std::any_of(optimizer_groups.begin(), optimizer_groups.end(), keeps);
  }
  // Returns whether one of them clips its own gradients.
  bool clips_groups() const {
    return std::any_of(optimizer_groups.begin(), optimizer_groups.end(),
                       [](const Optimizer& o) { return o.max_gradient_norm.has_value(); });
  }
  // Returns the first composed optimizer, or null. It updates neither in backward nor on the host.
  const Optimizer* composed() const {
    if (optimizer.composed()) return &optimizer;
    const auto found =
        std::find_if(optimizer_groups.begin(), optimizer_groups.end(), [](const Optimizer& o) { return o.composed(); });
    return found == optimizer_groups.end() ? nullptr : &*found;
  }
  bool updates_on_host() const { return update_device == UpdateDevice::kHost; }
  // Returns the parts of the state that lie in host memory: those of offload_state, and with kHost moments and masters.
  StateOffload state_on_host() const {
    return {.moments = offload_state.moments || updates_on_host(),
            .masters = offload_state.masters || updates_on_host(),
            .parameters = offload_state.parameters};
  }

  // Returns how the strategy places the model's state on the mesh.
  Placement placement() const { return Placement::Of(strategy, accumulation == Accumulation::kNoSync, mesh); }
};

// Returns InvalidArgument if the options contradict each other for a model in which weights that train are used in
// fewer bits than fp32 (`narrow_weights`) or are not, and FailedPrecondition if updates are to run on the host and
// `has_host_ops` is false. REQUIRES: options.accumulation is not kAuto, and options.micro_batches and both sizes of the
// mesh are at least 1.
absl::Status CheckStepOptions(const StepOptions& options, bool narrow_weights, bool has_host_ops);

}  // namespace shale
