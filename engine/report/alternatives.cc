#include "engine/report/alternatives.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/planner/trial.h"
#include "engine/text/numbers.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<Alternatives> Alternatives::Create(const Job& job, const JobPlan& plan, const Ops& ops) {
  Alternatives alternatives(job, plan, ops);
  SHALE_ASSIGN_OR_RETURN(alternatives.own_, alternatives.CostOf(plan.options));
  return alternatives;
}

absl::StatusOr<Cost> Alternatives::CostOf(const StepOptions& options) const {
  SHALE_ASSIGN_OR_RETURN(Choice choice,
                         ChooseAccumulation(plan_.train.graph, plan_.evaluate.graph, options, plan_.budget, ops_));
  const PlannedStep& train = choice.trial.train;
  const OffloadSummary offload = SummarizeOffload(train.step.program);
  return Cost{choice.options,
              choice.trial.arena_bytes(),
              choice.communication.gathers,
              choice.communication.sent_bytes,
              train.memory.host_bytes,
              offload.offloaded_bytes,
              offload.state_fetched_bytes + offload.state_returned_bytes,
              SummarizeFlops(train.step.program),
              train.memory.bytes_at_peak};
}

std::string Alternatives::Fits(const Cost& cost) const {
  return plan_.budget.Holds(cost.bytes, cost.host_bytes) ? "" : "does not fit";
}

std::string Needs(const Cost& cost) {
  return absl::StrCat(FormatBytes(cost.bytes),
                      cost.host_bytes > 0 ? absl::StrCat(" + ", FormatBytes(cost.host_bytes), " of host") : "");
}

std::string Difference(int64_t bytes, int64_t than) {
  if (bytes == than) return "the same";
  return bytes < than ? absl::StrCat("saves ", FormatBytes(than - bytes))
                      : absl::StrCat("adds ", FormatBytes(bytes - than));
}

}  // namespace shale
