#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/job_plan.h"

namespace shale {
namespace {

std::string Remark(absl::string_view why, absl::string_view limit, const std::vector<std::string>& fields) {
  return absl::StrCat("This machine ", why, ".\nIt was planned without ", limit, "; set ",
                      absl::StrJoin(fields, " and "), " to what a rank has on the machine where the job will run.\n");
}

}  // namespace

absl::StatusOr<JobPlan> PlanJobForAnywhere(const Job& job, const Machine& here, std::string& remark,
                                           std::optional<Refusal>& refusal) {
  remark.clear();
  absl::StatusOr<JobPlan> plan = PlanJobOfAnySize(job, here.WithoutBudget(), refusal);
  if (!plan.ok() || refusal) return plan;
  absl::StatusOr<Budget> budget = BudgetOf(job, here.default_budget);
  if (!budget.ok()) {
    remark =
        Remark(absl::StrCat("cannot run the job: ", budget.status().message()), "a limit", {"memory.budget_bytes"});
    return plan;
  }
  const Budget& named = plan->budget;
  if (budget->bytes == named.bytes && budget->host_bytes == named.host_bytes) return plan;
  const Variant* nearest = nullptr;
  for (const Variant& c : plan->candidates) {
    if (!c.fits) continue;
    if (budget->Holds(c.cost.arena_bytes, c.cost.host_bytes)) return PlanJob(job, here);
    if (nearest == nullptr || budget->Missing(c.cost.arena_bytes, c.cost.host_bytes) <
                                  budget->Missing(nearest->cost.arena_bytes, nearest->cost.host_bytes)) {
      nearest = &c;
    }
  }
  std::vector<std::string> fields;
  if (nearest->cost.arena_bytes > budget->bytes) fields.push_back("memory.budget_bytes");
  if (nearest->cost.host_bytes > budget->host_bytes) fields.push_back("memory.host_budget_bytes");
  budget->firm = true;  // The remark says itself which fields set others.
  remark =
      Remark(absl::StrCat("is too small for the job: it ", MissingText(nearest->cost, *budget)), "that limit", fields);
  return plan;
}

}  // namespace shale
