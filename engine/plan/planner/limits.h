// Refuses jobs that are not worth planning: those that are too large, before any product of sizes can overflow, and
// those whose name patterns match nothing in their model.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/compile/graph/graph.h"
#include "engine/compile/program/work_limits.h"
#include "engine/compile/step/options.h"
#include "engine/plan/config/job.h"

namespace shale {

// 1 EiB: more memory than a rank of any machine has.
inline constexpr double kLargestPlanBytes = 0x1p60;

// Returns an estimate of the number of instructions of the job's program. That of a custom model counts
// CustomModel::layers.
double EstimatedInstructions(const Job& job);

// Checks the sizes of the graph's tensors, and EstimatedInstructions against `limits`. Call it before the graph is
// built. Returns InvalidArgument, which names the fields to change.
absl::Status CheckGraphSize(const Job& job, const WorkLimits& limits);

// Checks an upper bound of the bytes that the program could hold at once. Call it before the program is compiled.
// Returns ResourceExhausted, which names the fields to change.
absl::Status CheckProgramSize(const ModelGraph& graph, const StepOptions& options);

// Returns InvalidArgument, which names the field, if a pattern of optimizer.no_decay matches no parameter, if one of
// activation_checkpointing.recompute matches no activation that could be recomputed, or if one of memory.offload
// matches no activation. The builder of the graph has checked those of optimizer.train_only. Returns the error of
// `limits`, which it looks at pattern by pattern, if the work must end.
absl::Status CheckPatterns(const Job& job, const ModelGraph& model, const WorkLimits& limits = {});

}  // namespace shale
