#include "tools/bench/timed_job.h"

#include <utility>

#include "engine/run/calibrate/calibrate.h"
#include "kernels/check.h"

namespace shale {

absl::Status TimedJob::Step() {
  SHALE_ASSIGN_OR_RETURN(const StepReport report, trainer->Step());
  seconds.push_back(report.seconds);
  return absl::OkStatus();
}

void TimedJob::End() {
  trainer.reset();
  backend.reset();
}

absl::StatusOr<TimedJob> StartTimedJob(const Job& job, bool processes) {
  TimedJob timed{.data = std::make_unique<RandomTokens>(job)};
  SHALE_ASSIGN_OR_RETURN(timed.backend, CreateBackend(job));
  if (processes) timed.backend = WithRanksAsProcesses(std::move(timed.backend));
  SHALE_ASSIGN_OR_RETURN(timed.trainer,
                         Trainer::Create(job, {.backend = timed.backend.get(), .data = timed.data.get()}));
  timed.plan = std::make_shared<JobPlan>(timed.trainer->plan());
  timed.job = timed.trainer->job();
  return timed;
}

}  // namespace shale
