// `train --verify`: runs the checks of engine/verify/verify.h on a job, in the place of training it.
#pragma once

#include <string>
#include <vector>

namespace shale {

// Prints a line as each check ends, then what failed and why. Writes no run folder. Returns an exit code: kExitOk if
// all checks hold, kExitFailed if one fails, and kExitUsage if the job is wrong, so that nothing was checked.
int VerifyJob(const std::string& job_file, const std::vector<std::string>& overrides);

}  // namespace shale
