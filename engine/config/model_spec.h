// Converts the plain structs of a model back to its spec.
#pragma once

#include "engine/model/config.h"
#include "proto/job.pb.h"

namespace shale {

// Write `config` into `spec`, with every default written out. Values that are still undecided (a vocabulary of 0) are
// left out.
void WriteSpec(const DecoderConfig& config, proto::DecoderSpec& spec);
void WriteSpec(const MlpConfig& config, proto::MlpSpec& spec);

}  // namespace shale
