#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::StatusOr<ResolvedJob> Resolve(Job job, const DataFacts& data, const Machine& machine,
                                    absl::FunctionRef<absl::StatusOr<JobPlan>(const Job&)> plan) {
  ApplyDataFacts(data, job);
  SHALE_RETURN_IF_ERROR(ValidateJob(job));
  job.memory.loss_chunk_tokens = LossChunkTokens(job);
  ResolvedJob resolved;
  SHALE_ASSIGN_OR_RETURN(resolved.plan, plan(job));
  job.sharding.accumulation = resolved.plan.options.accumulation;
  // The threads are decided after the plan, because a job that does not fit is planned with other numbers of ranks too,
  // for which the number of threads differs.
  job.runtime.threads_per_rank = ThreadsPerRank(job.runtime, job.sharding.ranks, machine.hardware_threads);
  if (job.runtime.cpu_products == CpuMatMuls::kAuto) {
    // oneDNN computes none of a job in fp16.
    const bool packed =
        job.precision.compute == ComputePrecision::kFloat16 && machine.cpu_products != CpuMatMuls::kAuto;
    job.runtime.cpu_products = packed ? CpuMatMuls::kPacked : machine.cpu_products;
  }
  resolved.job = std::move(job);
  return resolved;
}

}  // namespace

absl::StatusOr<ResolvedJob> ResolveJob(Job job, const DataFacts& data, const Machine& machine, const WorkLimits& limits,
                                       Refusal* refusal) {
  return Resolve(std::move(job), data, machine,
                 [&](const Job& decided) { return PlanJob(decided, machine, limits, refusal); });
}

absl::StatusOr<ResolvedJob> ResolveJobForAnywhere(Job job, const DataFacts& data, const Machine& here,
                                                  std::string& remark, std::optional<Refusal>& refusal) {
  return Resolve(std::move(job), data, here,
                 [&](const Job& decided) { return PlanJobForAnywhere(decided, here, remark, refusal); });
}

}  // namespace shale
