// What the committed table of workspaces answers.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tests/kernels/cuda/cudnn/workspace_table.h"

namespace shale::testing {

// Of every described GPU, for both directions, in the order of the table, with no bytes: the attentions of tools/jobs
// as their runs ask for them, those of awkward sizes, and long ones. For a program that has the jobs among its data;
// fails if one does not load.
absl::StatusOr<std::vector<WorkspaceRow>> WorkspaceQuestions();

}  // namespace shale::testing
