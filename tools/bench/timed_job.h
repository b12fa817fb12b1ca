// A job whose steps are timed, on random tokens. Jobs that are compared take turns, a step each, because the speed of
// many machines changes from one second to the next.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/backend.h"
#include "engine/api/trainer.h"
#include "engine/plan/config/job.h"
#include "engine/run/calibrate/random_tokens.h"

namespace shale {

struct TimedJob {
  Job job;                              // As it was resolved.
  std::shared_ptr<const JobPlan> plan;  // Outlives the trainer.
  std::unique_ptr<Backend> backend;
  std::unique_ptr<RandomTokens> data;
  std::unique_ptr<Trainer> trainer;
  std::vector<double> seconds;  // Of each step that counts.

  // Makes a step that counts.
  absl::Status Step();
  // Gives the memory of the job back. Its seconds stay.
  void End();
};

// Returns a job that can take steps; it has taken none. `job.data` names nothing that is read. If `processes`, its
// ranks exchange as processes do (WithRanksAsProcesses). Errors: those of CreateBackend and Trainer::Create.
absl::StatusOr<TimedJob> StartTimedJob(const Job& job, bool processes = false);

}  // namespace shale
