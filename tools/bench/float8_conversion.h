// The GPU's own conversion to 8-bit floating-point formats.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device/cuda/handles.h"

namespace shale {

inline constexpr int kBFloat16Codes = 1 << 16;

// Enqueues the conversion of every bf16 value, by its code, to E4M3 and to E5M2, with saturation. Both results are
// device memory of kBFloat16Codes bytes.
absl::Status ConvertEveryBFloat16(uint8_t* e4m3, uint8_t* e5m2, cuda::StreamHandle stream);

}  // namespace shale
