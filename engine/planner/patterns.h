// Checks that the name patterns of a job match something in its model.
#pragma once

#include "absl/status/status.h"
#include "engine/config/job.h"
#include "engine/graph/graph.h"

namespace shale {

// Returns InvalidArgument, with the field, if a pattern of optimizer.no_decay matches no parameter, one of
// activation_checkpointing.recompute no activation that could be recomputed, or one of memory.offload no activation.
absl::Status CheckPatterns(const Job& job, const ModelGraph& model);

}  // namespace shale
