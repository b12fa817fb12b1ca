// What `train` has to do with the system that runs it, such as Slurm, Kubernetes, torchrun and tools/launch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "engine/config/job.h"
#include "engine/launch/process_place.h"
#include "engine/planner/job_plan.h"
#include "engine/train/run_folder.h"

namespace shale {

// Writes an error into the file that torchrun names in TORCHELASTIC_ERROR_FILE, if it does, so that torchrun reports
// the error as that of this process. Does nothing if the file cannot be written.
void WriteErrorFile(const absl::Status& error);

// Adds a row to the metrics that says why the job was started again after step `step`, if the environment says that it
// was: {"step": 40, "restart": 1, "cause": "signal 9 ended process 2 (pid 17 on a)"}.
absl::Status AppendRestart(const Variables& variables, int64_t step, RunFolder& folder);

// Returns a warning if a save of this plan's state probably takes longer than the `grace_seconds` that a process has
// after a signal: writes at most 16 MiB into the run folder, and concludes from the time that this takes how long a
// host takes for the parts of `ranks_on_host` ranks. Empty if it does not, or if the folder cannot be written.
std::string SlowSaveWarning(const JobPlan& plan, const RunFolder& folder, int64_t ranks_on_host, int64_t grace_seconds);

// Returns a warning if the folder's disk has less space free than the checkpoints of this plan and job will take beside
// those that are there. Empty if it has enough, or if the system does not say.
std::string DiskSpaceWarning(const JobPlan& plan, const CheckpointConfig& config, const RunFolder& folder);

}  // namespace shale
