// Writes the parameters of a checkpoint, of whatever model, as one safetensors file.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/checkpoint/reader.h"
#include "engine/checkpoint/safetensors.h"

namespace shale {

// Writes every parameter under the engine's name to the file at `path`, as F32, or rounded to nearest even as BF16 or
// F16. Takes the master weights if the checkpoint has any. The file appears complete or not at all. Streams: memory
// does not grow with the model. Returns InvalidArgument for another dtype, DataLoss for a damaged checkpoint, and the
// errors of SafetensorsWriter. `base` is as for CheckpointValues.
absl::Status ExportParameters(const CheckpointReader& checkpoint, SafetensorsDType dtype, const std::string& path,
                              ReadBase base = nullptr);

}  // namespace shale
