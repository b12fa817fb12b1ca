// Defaults: from a spec whose fields are each in range to plain structs.
#pragma once

#include <cstdint>

#include "engine/config/job.h"
#include "proto/job.pb.h"

namespace shale {

// REQUIRES: CheckFields went over `spec`. What contradicts itself resolves to something that engine/config/rules.h
// reports.
Job ResolveJob(const proto::Job& spec);

// `sequence_length` is the default of max_positions.
ModelConfig ResolveModel(const proto::ModelSpec& spec, int64_t sequence_length);

}  // namespace shale
