// The passes of Adafactor before a group is updated.
#pragma once

#include "engine/compile/step/options.h"
#include "engine/compile/step/state.h"
#include "engine/compile/step/writer.h"
#include "kernels/ops/update.h"

namespace shale {

// What an SGD subtracts from the weights of a group, and the values of its update.
struct FactoredDirection {
  Tensor direction_P;  // f32
  Tensor step_5;       // f32
};

// Emits the passes of kernels/ops/adafactor.h for a group whose reduced gradient is complete, with the collectives
// between them. A shard may begin inside of a row, so ranks that have shards of the group
//
//   kSums        sum the squares of rows and columns in their shard, and add these sums in the order of the ranks
//   kMoments     update their shard of the second moments, and gather all of them
//   kDirection   divide their shard of the gradient by their roots, and add two sums for each parameter
//   kScale       clip and scale their shard
//
// Replicas have equal gradients and do the same, without communication. `op` is the group's Update as it would be with
// another rule, and `number` the update's number.
FactoredDirection EmitFactoredDirection(const FactoredSettings& settings, const GroupState& g, const Update& op,
                                        const Tensor& number, ProgramWriter& writer);

}  // namespace shale
