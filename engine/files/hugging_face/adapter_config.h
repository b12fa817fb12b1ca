// The adapter_config.json of a PEFT folder.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/compile/model/config.h"

namespace shale {

// Returns the text of an adapter_config.json with which PEFT computes what the engine does. `base` is the folder or the
// name of the base model, or empty. Returns InvalidArgument if no Hugging Face family can express the decoder.
// REQUIRES: config.adapter is given.
absl::StatusOr<std::string> HfAdapterConfigText(const DecoderConfig& config, const std::string& base);

// Returns rank, alpha and rank_stabilized of the adapters of `folder`/adapter_config.json, without targets, which
// follow from the tensors, and without dropout (HfAdapterDropout). Returns InvalidArgument, with one line per problem
// as ReadHfConfig does, for everything that the engine cannot compute exactly: other kinds of adapters, biases, layers
// with ranks of their own, further modules that were trained, adapters of a base that their initialization changed
// (PiSSA and others), and settings of PEFT that it does not know.
absl::StatusOr<AdapterConfig> ReadHfAdapterConfig(const std::string& folder);

// Returns InvalidArgument if target_modules, exclude_modules or layers_to_transform of `folder`/adapter_config.json
// leave out a linear layer that has adapters in `config`: PEFT would ignore their tensors. REQUIRES: config.adapter is
// given.
absl::Status CheckHfAdapterModules(const std::string& folder, const DecoderConfig& config);

}  // namespace shale
