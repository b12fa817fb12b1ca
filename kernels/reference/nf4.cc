#include "kernels/nf4.h"

#include <algorithm>
#include <vector>

#include "kernels/ops/quantized.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {

absl::Status Reference(const Nf4Dequantize& op) {
  const Nf4Row row{op.out_RN.dim(1)};
  std::vector<float> weights(kNf4GroupWeights);
  for (int64_t r = 0; r < op.out_RN.dim(0); ++r) {
    const auto* bytes = op.stored_RP.as<const uint8_t>() + r * row.bytes();
    const auto* scales = reinterpret_cast<const float*>(bytes + row.scales_begin());
    const auto* means = reinterpret_cast<const float*>(bytes + row.means_begin());
    for (int64_t g = 0; g < row.groups(); ++g) {
      DequantizeNf4(bytes + g * kNf4GroupWeights / 2, bytes + row.absmax_begin() + g * kNf4GroupBlocks, scales[g],
                    means[g], absl::MakeSpan(weights));
      for (int64_t i = 0; i < kNf4GroupWeights; ++i) {
        Put(op.out_RN, r * row.weights + g * kNf4GroupWeights + i, weights[i]);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
