// The alternatives to a plan that a report compares it with.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/memory/machine.h"
#include "engine/planner/fit.h"
#include "engine/planner/job_plan.h"
#include "engine/planner/summary.h"
#include "engine/planner/trial.h"
#include "engine/program/work_limits.h"

namespace shale {

// The cost of one alternative, for one rank.
struct Cost {
  StepOptions options;
  int64_t bytes = 0;
  int64_t activation_bytes = 0;  // MeasureActivations of the training program.
  int64_t gathers = 0, sent_bytes = 0;
  int64_t host_bytes = 0, offloaded_bytes = 0;
  // Bytes of state in host memory that a step moves, both ways, and of gradients that it moves there.
  int64_t state_moved_bytes = 0;
  FlopsSummary flops;
  std::array<int64_t, kBufferCategories> at_peak = {};
};

// A plan, its cost, and the costs of other options for the same job. Borrows what it is created from.
class Alternatives {
 public:
  // Uses the budget of `plan`, not that of `machine`. Once a limit is reached, what compiles returns its error.
  static absl::StatusOr<Alternatives> Create(const Job& job, const JobPlan& plan, const Machine& machine,
                                             const WorkLimits& limits);

  const Job& job() const { return job_; }
  const JobPlan& plan() const { return plan_; }
  const Cost& own() const { return own_; }
  // Returns whether this program has the ops for updates on the host.
  bool can_update_on_host() const { return ops_->host() != nullptr; }
  int64_t ranks() const { return plan_.options.mesh.ranks(); }

  // Compiles and plans the job with `options`. If their accumulation is AUTO, chooses it as PlanJob does.
  absl::StatusOr<Cost> CostOf(const StepOptions& options) const;

  // Compiles and plans the job with the plan's own options, the same global batch, and `micro_batch` sequences in a
  // micro-batch.
  absl::StatusOr<Cost> CostOfMicroBatch(int64_t micro_batch) const;

  // Returns the largest micro-batch that fits the budget of the plan, found with few trials (FitEffort::kQuick).
  absl::StatusOr<Fit> LargestMicroBatch() const;

  // Returns "does not fit", or an empty string if the budget of the plan holds `cost`.
  std::string Fits(const Cost& cost) const;

 private:
  Alternatives(const Job& job, const JobPlan& plan, const Machine& machine, const WorkLimits& limits)
      : job_(job), plan_(plan), machine_(machine), limits_(limits), ops_(machine.create_ops(job.sharding.ranks)) {}

  absl::StatusOr<Cost> CostOf(const GraphRefs& graphs, const StepOptions& options) const;
  Job WithMicroBatch(int64_t micro_batch) const;

  const Job& job_;
  const JobPlan& plan_;
  const Machine& machine_;
  const WorkLimits& limits_;
  std::unique_ptr<Ops> ops_;
  Cost own_;
};

// Returns "9.42 GiB" or "9.42 GiB + 12.2 GiB of host".
std::string Needs(const Cost& cost);

// Returns "saves 1.2 GiB", "adds 1.2 GiB" or "the same".
std::string Difference(int64_t bytes, int64_t than);

}  // namespace shale
