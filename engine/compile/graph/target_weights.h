// Whether the targets of a job have weights, and what the weighted loss is divided by.
#pragma once

namespace shale {

// The loss of a step is a sum over the targets of its global batch, divided by a number that all ranks share. The order
// is that of DataSpec.TargetWeights in proto/job/data.proto.
enum class TargetWeights {
  kNone,         // Every target counts once: sum of losses / number of targets.
  kOverTokens,   // Sum of weight x loss / number of targets. Targets of weight 0 count in that number.
  kOverWeights,  // Sum of weight x loss / sum of |weight|.
};

}  // namespace shale
