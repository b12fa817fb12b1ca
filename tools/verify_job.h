// `train --verify`: runs the checks of engine/api/verify.h on a job, in the place of training it.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

namespace shale {

// Prints a line as each check ends, then what failed and why. Writes no run folder. Returns an exit code: kExitOk if
// all checks hold, kExitFailed if one fails, and kExitUsage if the job is wrong, so that nothing was checked. Once
// `cancelled` is set, by another thread or by a signal handler, it says that it stops before the next step, and returns
// nothing.
std::optional<int> VerifyJob(const std::string& job_file, const std::vector<std::string>& overrides,
                             const std::atomic<bool>& cancelled);

}  // namespace shale
