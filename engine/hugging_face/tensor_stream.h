// Writes the tensors of a layout into a safetensors file, with values from the engine's parameters.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/api/export.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/hugging_face/layout.h"

namespace shale {

// Writes these tensors of the layout. Calls `reader` as ExportHf does. Uses at most 4 MiB of memory of its own.
absl::Status WriteHfTensors(const HfLayout& layout, const std::vector<const HfTensor*>& tensors, SafetensorsDType dtype,
                            const HfParameterReader& reader, const std::string& path);

}  // namespace shale
