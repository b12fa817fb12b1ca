// The properties that fuzz targets check on every job that parses.
#pragma once

#include "engine/plan/config/job.h"

namespace shale {

// Checks that the printed job parses to an equal job. That parse is also what ValidateJob does.
void CheckPrintsAndParsesBack(const Job& job);

}  // namespace shale
