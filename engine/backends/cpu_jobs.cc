#include "engine/backends/cpu_jobs.h"

#include "engine/planner/job_plan.h"
#include "engine/runtime/cpu_backend.h"

namespace shale {

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuJobBackend(const Job& job) {
  return CreateCpuBackend({.ops = job.runtime.ops, .threads = ThreadsPerRank(job)});
}

}  // namespace shale
