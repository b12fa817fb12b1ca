#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/job_plan.h"
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
  if (job.runtime.cpu_matmuls == CpuMatMuls::kAuto) {
    // oneDNN computes none of a job in fp16.
    const bool packed = job.precision.compute == ComputePrecision::kFloat16 && machine.cpu_matmuls != CpuMatMuls::kAuto;
    job.runtime.cpu_matmuls = packed ? CpuMatMuls::kPacked : machine.cpu_matmuls;
  }
  resolved.job = std::move(job);
  return resolved;
}

// Returns `job_with` for jobs that are to have these facts. Borrows both.
JobWith WithFacts(const JobWith& job_with, const DataFacts& data) {
  if (!job_with) return {};
  return [&](const std::vector<Override>& overrides) -> absl::StatusOr<Job> {
    SHALE_ASSIGN_OR_RETURN(const Job written, job_with(overrides));
    Job job = written;
    ApplyDataFacts(data, job);
    if (!(job == written)) SHALE_RETURN_IF_ERROR(ValidateJob(job));
    return job;
  };
}

}  // namespace

absl::StatusOr<ResolvedJob> ResolveJob(Job job, const DataFacts& data, const Machine& machine, const WorkLimits& limits,
                                       Refusal* refusal, const JobWith& job_with) {
  return Resolve(std::move(job), data, machine, [&](const Job& decided) {
    return PlanJob(decided, machine, limits, refusal, WithFacts(job_with, data));
  });
}

absl::StatusOr<ResolvedJob> ResolveJobForAnywhere(Job job, const DataFacts& data, const Machine& here,
                                                  std::string& remark, std::optional<Refusal>& refusal,
                                                  const JobWith& job_with) {
  return Resolve(std::move(job), data, here, [&](const Job& decided) {
    return PlanJobForAnywhere(decided, here, remark, refusal, WithFacts(job_with, data));
  });
}

namespace {

std::string Remark(const Machine& machine, absl::string_view why, absl::string_view limit,
                   const std::vector<std::string>& fields) {
  const bool here = machine.name.empty();
  return absl::StrCat(
      here ? "This machine" : absl::StrCat("The machine ", machine.name), " ", why, ".\nIt was planned without ", limit,
      "; set ", absl::StrJoin(fields, " and "),
      here ? " to what a rank has on the machine where the job will run.\n" : " to plan it with another one.\n");
}

// Returns why a job does not fit this machine, and what would make it fit.
absl::StatusOr<Refusal> RefusalHere(const Job& job, const Machine& here, const JobWith& job_with) {
  const WorkLimits no_limits;
  Drafter drafter(job, here, no_limits, job_with);
  SHALE_ASSIGN_OR_RETURN(Draft draft, drafter.Compile());
  return RefusalOf(drafter, draft, no_limits);
}

}  // namespace

absl::StatusOr<JobPlan> PlanJobForAnywhere(const Job& job, const Machine& here, std::string& remark,
                                           std::optional<Refusal>& refusal, const JobWith& job_with) {
  remark.clear();
  absl::StatusOr<JobPlan> plan = PlanJobOfAnySize(job, here.WithoutBudget(), refusal, job_with);
  if (!plan.ok() || refusal) return plan;
  absl::StatusOr<Budget> budget = BudgetOf(job, here.default_budget);
  if (!budget.ok()) {
    remark = Remark(here, absl::StrCat("cannot run the job: ", budget.status().message()), "a limit",
                    {"memory.budget_bytes"});
    return plan;
  }
  const Budget& named = plan->budget;
  if (budget->bytes == named.bytes && budget->host_bytes == named.host_bytes) return plan;
  for (const Variant& c : plan->candidates) {
    if (c.fits && budget->Holds(c.cost.arena_bytes, c.cost.host_bytes)) return PlanJob(job, here);
  }
  SHALE_ASSIGN_OR_RETURN(Refusal lacking, RefusalHere(job, here, job_with));
  std::vector<std::string> fields;
  if (lacking.cost.arena_bytes > budget->bytes) fields.push_back("memory.budget_bytes");
  if (lacking.cost.host_bytes > budget->host_bytes) fields.push_back("memory.host_budget_bytes");
  lacking.budget.firm = true;  // The remark says itself which fields set others.
  remark = Remark(here, absl::StrCat("is too small for the job: it ", RefusalText(lacking)), "that limit", fields);
  return plan;
}

}  // namespace shale
