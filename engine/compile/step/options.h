// The options of the step compiler.
//
// ChosenBlocks: the blocks of a model that activation checkpointing applies to. Segment: some of them in a row that
// keep one boundary together.
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

// Consecutive blocks of a model.
struct Segment {
  int64_t first = 0;  // Index of the first block.
  int64_t blocks = 0;
  bool operator==(const Segment&) const = default;
};

// The blocks that a preset applies to. If first_layers + last_layers > 0, these are the first `first_layers` and the
// last `last_layers` blocks of the model. Otherwise they are blocks 0, n, 2n, and so on for n = every_nth.
struct ChosenBlocks {
  int64_t layers = 0;  // Number of blocks in the model.
  int64_t every_nth = 1;
  int64_t first_layers = 0;
  int64_t last_layers = 0;

  bool Includes(int64_t layer) const;
  // Returns the number of blocks in the longest run of consecutive chosen blocks. No segment is longer.
  int64_t LongestRun() const;
};

// Divides each run of consecutive chosen blocks into segments of `segment_blocks` blocks. The last segment of a run may
// be shorter. A segment keeps one boundary from forward to backward, the input of its first block. Before its backward,
// all its blocks but the last run forward again (Chen et al., 2016: O(sqrt L) boundaries for L blocks). Returns no
// segments if segment_blocks is 1: each block then keeps its own input and what the preset keeps.
std::vector<Segment> SegmentsOf(const ChosenBlocks& chosen, int64_t segment_blocks);

// Returns the largest number of boundaries of chosen blocks that are held at once: one for each segment, and those
// between the blocks of the longest segment. If segment_blocks is 1, this is one for each chosen block.
int64_t BoundariesHeld(const ChosenBlocks& chosen, int64_t segment_blocks);

// Returns the segment_blocks, at least 2, with the smallest BoundariesHeld. It is about the square root of the number
// of chosen blocks; among equals, the value nearest to that root is taken. REQUIRES: chosen.LongestRun() >= 2.
int64_t SqrtSegmentBlocks(const ChosenBlocks& chosen);

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
  // The gradients of a group that leave in bf16 go in parts of at least so many bytes, and at most eight: what a rank
  // receives of a part is in memory beside what it sends.
  int64_t sent_part_bytes = int64_t{16} << 20;
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
