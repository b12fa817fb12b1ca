// How the weights of frozen parameters are stored between their uses.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace shale {

// The order is that of FrozenWeightsSpec.Storage in proto/job.proto.
enum class FrozenWeights : uint8_t {
  kAsComputed,  // In the compute dtype.
  kBFloat16,    // In bf16, also if the compute dtype is f32.
  kNf4,         // Matrices of linear layers in blocks in 4 bits (kernels/nf4.h), the others as computed.
};

inline absl::string_view ToString(FrozenWeights weights) {
  switch (weights) {
    case FrozenWeights::kAsComputed: return "AS_COMPUTED";
    case FrozenWeights::kBFloat16: return "BF16";
    case FrozenWeights::kNf4: return "NF4";
  }
  return "?";
}

}  // namespace shale
