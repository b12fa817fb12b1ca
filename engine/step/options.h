// The options of the step compiler.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/optimizer/optimizer.h"
#include "engine/step/options_enums.h"
#include "engine/step/segments.h"
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
  // Number of consecutive chosen blocks that keep one boundary together (engine/step/segments.h).
  int64_t segment_blocks = 1;
  // Name patterns (engine/text/pattern.h) of further values to recompute, in any unit but the last.
  std::vector<std::string> patterns;
  // Name patterns of values that are kept in host memory until their backward (engine/step/offload.h).
  std::vector<std::string> offload;

  // Returns the blocks that the preset applies to in a model of `layers` blocks.
  ChosenBlocks Chosen(int64_t layers) const { return {layers, every_nth, first_layers, last_layers}; }
};

struct StepOptions {
  Strategy strategy = Strategy::kFullShard;
  Accumulation accumulation = Accumulation::kSharded;  // Not kAuto.
  Mesh mesh;                                           // Its rows hold copies of the state.
  int64_t micro_batches = 1;                           // K, accumulation steps.
  int64_t prefetch = 1;                                // Units gathered ahead of the one in use.
  bool reshard_after_forward = true;
  // LAYERED: matmuls pack the weights of a unit in the first micro-batch and keep them packed for the others. If false,
  // each matmul packs its weights again, in scratch.
  bool packs_once = true;
  MasterWeights master = MasterWeights::kFloat32;
  // The dtype of the shard of the gradient that accumulates over the step: f32, or bf16, which is rounded
  // stochastically. What CheckGradientShards accepts (engine/step/combination.h).
  DType gradient_shards = DType::kFloat32;
  StateOffload offload_state;  // What CheckStateOffload accepts (engine/step/combination.h).
  UpdateDevice update_device = UpdateDevice::kSame;
  ActivationOptions activations;
  Optimizer optimizer;
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

}  // namespace shale
