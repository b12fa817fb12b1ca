// Refuses what is too large for a plan to be computed at all, before any product of sizes can overflow.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/config/job.h"
#include "engine/graph/graph.h"
#include "engine/step/options.h"

namespace shale {

// No rank of any machine has so much memory: 1 EiB.
inline constexpr double kLargestPlanBytes = 0x1p60;
// Instructions of a program, about; a thousand blocks have 40,000. Planning so many takes seconds and a gigabyte.
inline constexpr double kLargestPlanInstructions = 0x1p18;

// Before the graph is built: its tensors and the number of its nodes. InvalidArgument names the fields to change.
absl::Status CheckGraphSize(const Job& job);

// Before a program is compiled: everything that it could hold at once.
absl::Status CheckProgramSize(const ModelGraph& graph, const StepOptions& options);

}  // namespace shale
