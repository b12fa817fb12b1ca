// Reads what train --trace wrote.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/compile/program/program.h"
#include "engine/plan/time/prediction.h"

namespace shale {

// Returns the times of rank 0 in the last step of a trace (StepTrace::ChromeJson) of this program in a job with so many
// ranks. Returns InvalidArgument if the text is no trace, or one of another program.
absl::StatusOr<MeasuredStep> ReadTrace(absl::string_view json, const StepProgram& program, int64_t ranks);

}  // namespace shale
