// Writes adapters as a folder that PEFT loads without missing or unexpected keys.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/hugging_face/export.h"
#include "engine/model/config.h"

namespace shale {

// Writes adapter_config.json and adapter_model.safetensors into `folder`, with values rounded to `dtype`. `base` is the
// folder or the name of the base model for adapter_config.json, or empty. Calls `reader` and makes the folder as
// ExportHf does. Returns FailedPrecondition if `folder` is neither absent nor empty, and InvalidArgument if no Hugging
// Face family can express the decoder. REQUIRES: config.adapter is given.
absl::Status ExportHfAdapter(const DecoderConfig& config, SafetensorsDType dtype, const std::string& base,
                             const HfParameterReader& reader, const std::string& folder);

}  // namespace shale
