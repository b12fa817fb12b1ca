// From the plain structs of a model back to its spec, with every default written out.
#pragma once

#include "engine/model/config.h"
#include "proto/job.pb.h"

namespace shale {

void WriteSpec(const DecoderConfig& config, proto::DecoderSpec& spec);
void WriteSpec(const MlpConfig& config, proto::MlpSpec& spec);

}  // namespace shale
