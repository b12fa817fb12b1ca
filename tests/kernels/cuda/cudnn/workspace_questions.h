// The questions that the committed table of workspaces answers.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tests/kernels/cuda/cudnn/workspace_table.h"

namespace shale::testing {

// Returns the rows of the table in their order, with 0 bytes. For every described GPU and both directions there are the
// attentions of tools/jobs as their runs ask for them, those of awkward sizes, and long ones. Returns an error if a job
// does not load. REQUIRES: the program has the jobs among its data.
absl::StatusOr<std::vector<WorkspaceRow>> WorkspaceQuestions();

}  // namespace shale::testing
