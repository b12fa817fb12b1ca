// Trained weights from a file into the state of a job's ranks.
#pragma once

#include "absl/status/status.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/train/parameter_store.h"

namespace shale {

// Writes every parameter of `store` from the tensor of its name, in pieces. InvalidArgument if the file's tensors and the
// model's parameters are not the same in name and shape, with the first difference; then nothing was written.
absl::Status LoadWeights(const SafetensorsReader& weights, ParameterStore& store);

}  // namespace shale
