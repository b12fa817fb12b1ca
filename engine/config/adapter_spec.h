// Reads, writes and checks the adapters of a decoder in a job spec (message AdapterSpec). engine/config/decoder_spec.cc
// has the ranges of their numbers.
#pragma once

#include "engine/config/errors.h"
#include "engine/model/config.h"
#include "proto/job.pb.h"

namespace shale {

AdapterConfig ReadAdapter(const proto::AdapterSpec& spec);
void WriteAdapter(const AdapterConfig& config, proto::AdapterSpec& spec);

// Reports targets that match no layer, and a rank that is too large for a layer. REQUIRES: config.adapter is given.
void CheckAdapter(const DecoderConfig& config, SpecErrors& errors);

}  // namespace shale
