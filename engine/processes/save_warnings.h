// Warnings, at the start of a run, that its saves may not succeed.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config/job.h"
#include "engine/planner/job_plan.h"
#include "engine/train/run_folder.h"

namespace shale {

// Returns a warning if a save of this plan's state probably takes longer than the `grace_seconds` that a process has
// after a signal: writes at most 16 MiB into the run folder, and concludes from the time that this takes how long a
// host takes for the parts of `ranks_on_host` ranks. Empty if it does not, or if the folder cannot be written.
std::string SlowSaveWarning(const JobPlan& plan, const RunFolder& folder, int64_t ranks_on_host, int64_t grace_seconds);

// Returns a warning if the folder's disk has less space free than the checkpoints of this plan and job will take beside
// those that are there. Empty if it has enough, or if the system does not say.
std::string DiskSpaceWarning(const JobPlan& plan, const CheckpointConfig& config, const RunFolder& folder);

}  // namespace shale
