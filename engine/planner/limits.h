// Refuses jobs that are too large to be planned at all, before any product of sizes can overflow.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/config/job.h"
#include "engine/graph/graph.h"
#include "engine/program/work_limits.h"
#include "engine/step/options.h"

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

}  // namespace shale
