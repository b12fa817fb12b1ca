// What the targets that read jobs ask of the job that they got.
#pragma once

#include "engine/config/job.h"

namespace shale {

// That the job, printed, parses to an equal one, which prints the same; and that ValidateJob has no objection.
void CheckPrintsAndParsesBack(const Job& job);

}  // namespace shale
