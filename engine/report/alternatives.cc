#include "engine/report/alternatives.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/text/numbers.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<Alternatives> Alternatives::Create(const Job& job, const JobPlan& plan, const Machine& machine,
                                                  const WorkLimits& limits) {
  Alternatives alternatives(job, plan, machine, limits);
  SHALE_ASSIGN_OR_RETURN(alternatives.own_, alternatives.CostOf(plan.options));
  return alternatives;
}

absl::StatusOr<Cost> Alternatives::CostOf(const StepOptions& options) const {
  return CostOf(GraphRefs(plan_), options);
}

absl::StatusOr<Cost> Alternatives::CostOf(const GraphRefs& graphs, const StepOptions& options) const {
  SHALE_ASSIGN_OR_RETURN(const Choice choice, ChooseAccumulation(graphs, options, plan_.budget, *ops_, limits_));
  const StepProgram& program = choice.trial.train.step.program;
  const OffloadSummary offload = SummarizeOffload(program);
  return Cost{.options = choice.options,
              .bytes = choice.trial.arena_bytes(),
              .activation_bytes = MeasureActivations(program),
              .gathers = choice.communication.gathers,
              .sent_bytes = choice.communication.sent_bytes,
              .host_bytes = choice.trial.train.memory.host_bytes,
              .offloaded_bytes = offload.offloaded_bytes,
              .state_moved_bytes = offload.state_fetched_bytes + offload.state_returned_bytes + offload.gradient_bytes,
              .flops = SummarizeFlops(program),
              .at_peak = choice.trial.train.memory.bytes_at_peak};
}

Job Alternatives::WithMicroBatch(int64_t micro_batch) const {
  Job job = job_;
  job.batch.micro_batch = micro_batch;
  job.sharding.accumulation = plan_.options.accumulation;
  return job;
}

absl::StatusOr<Cost> Alternatives::CostOfMicroBatch(int64_t micro_batch) const {
  const Job job = WithMicroBatch(micro_batch);
  SHALE_ASSIGN_OR_RETURN(const JobGraphs graphs, BuildGraphs(job, limits_));
  return CostOf(GraphRefs(graphs), StepOptionsFor(job));
}

absl::StatusOr<Fit> Alternatives::LargestMicroBatch() const {
  Machine machine = machine_;
  machine.default_budget = [this](int64_t) -> absl::StatusOr<Budget> { return plan_.budget; };
  const Job job = WithMicroBatch(job_.batch.micro_batch);
  return FindFit(
      FitField::kMicroBatch, job, [this](int64_t micro_batch) { return WithMicroBatch(micro_batch); }, machine,
      FitEffort::kQuick, limits_);
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
