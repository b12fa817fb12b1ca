// What the step compiler is told besides the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/optimizer/optimizer.h"
#include "engine/step/options_enums.h"
#include "sharding/mesh.h"
#include "sharding/placement.h"

namespace shale {

// Which tensors that backward needs are computed again instead of kept.
struct ActivationOptions {
  CheckpointingPreset preset = CheckpointingPreset::kNone;
  // The blocks that the preset applies to, the others keep all: the first a and the last b when a + b > 0, else blocks
  // 0, n, 2n, ...
  int64_t every_nth = 1;
  int64_t first_layers = 0;
  int64_t last_layers = 0;
  // Values to recompute besides, in any unit but the last: `*` matches any run of characters.
  std::vector<std::string> patterns;
  // Values that wait for their backward in host memory, likewise (engine/step/offload.h).
  std::vector<std::string> offload;
};

struct StepOptions {
  Strategy strategy = Strategy::kFullShard;
  Accumulation accumulation = Accumulation::kSharded;  // Not kAuto.
  Mesh mesh;                                           // Its rows hold copies of the state.
  int64_t micro_batches = 1;                           // K, accumulation steps.
  int64_t prefetch = 1;                                // Units gathered ahead of the one in use.
  bool reshard_after_forward = true;
  // LAYERED: what matmuls pack of a unit's weights they pack in the first micro-batch, and keep for the others; else
  // each packs for itself, in scratch.
  bool packs_once = true;
  MasterWeights master = MasterWeights::kFloat32;
  ActivationOptions activations;
  Optimizer optimizer;
  UpdateTime update = UpdateTime::kAfterBackward;
  Clipping clipping = Clipping::kGlobal;
  // Parameters by name that do not decay; vectors never do.
  std::vector<std::string> no_decay_patterns;
  // Room for a copy of what a checkpoint saves, which is written to disk while the next steps run (CompileSnapshot).
  bool snapshot = false;
  // Whether the reduced gradients of a step stay in memory until the next step, so that they can be read. If not, their
  // buffers exist only from the first write to the update, and share bytes with what the rest of the step needs.
  bool keep_gradients = false;

  // Returns how the strategy places the model's state on the mesh.
  Placement placement() const { return Placement::Of(strategy, accumulation == Accumulation::kNoSync, mesh); }
};

}  // namespace shale
