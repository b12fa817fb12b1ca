#include "tools/bench/planned_job.h"

#include <memory>

#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<ResolvedJob> ResolveBenchJob(const std::string& path, const std::vector<std::string>& overrides) {
  SHALE_ASSIGN_OR_RETURN(const Job job, LoadJob(path, overrides));
  SHALE_ASSIGN_OR_RETURN(const DataFacts data, DataFactsForPlanning(job));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(job));
  return ResolveJob(job, data, backend->machine().WithoutBudget());
}

}  // namespace shale
