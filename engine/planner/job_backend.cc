#include "engine/planner/job_backend.h"

#include "engine/planner/job_plan.h"
#include "engine/runtime/cpu_backend.h"

namespace shale {

std::unique_ptr<Backend> CreateBackend(const Job& job) {
  return CreateCpuBackend({.ops = job.runtime.ops, .threads = ThreadsPerRank(job)});
}

}  // namespace shale
