// Checks that the name patterns of a job match something in its model.
#pragma once

#include "absl/status/status.h"
#include "engine/config/job.h"
#include "engine/graph/graph.h"
#include "engine/program/work_limits.h"

namespace shale {

// Returns InvalidArgument, which names the field, if a pattern of optimizer.no_decay matches no parameter, if one of
// activation_checkpointing.recompute matches no activation that could be recomputed, or if one of memory.offload
// matches no activation. The builder of the graph has checked those of optimizer.train_only. Returns the error of
// `limits`, which it looks at pattern by pattern, if the work must end.
absl::Status CheckPatterns(const Job& job, const ModelGraph& model, const WorkLimits& limits = {});

}  // namespace shale
