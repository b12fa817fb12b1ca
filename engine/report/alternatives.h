// The alternatives to a plan that a report compares it with.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/planner/job_plan.h"
#include "engine/planner/summary.h"

namespace shale {

// The cost of one alternative, for one rank.
struct Cost {
  StepOptions options;
  int64_t bytes = 0;
  int64_t gathers = 0, sent_bytes = 0;
  int64_t host_bytes = 0, offloaded_bytes = 0;
  int64_t state_moved_bytes = 0;  // Offloaded state, both ways.
  FlopsSummary flops;
  std::array<int64_t, kBufferCategories> at_peak = {};
};

// A plan, its cost, and the costs of other options for the same job. Borrows what it is created from.
class Alternatives {
 public:
  // `ops` are the ops of one of the job's ranks (Machine::create_ops).
  static absl::StatusOr<Alternatives> Create(const Job& job, const JobPlan& plan, const Ops& ops);

  const Job& job() const { return job_; }
  const JobPlan& plan() const { return plan_; }
  const Cost& own() const { return own_; }
  int64_t ranks() const { return plan_.options.mesh.ranks(); }

  // Compiles and plans the job with `options`. If their accumulation is AUTO, chooses it as PlanJob does.
  absl::StatusOr<Cost> CostOf(const StepOptions& options) const;

  // Returns "does not fit", or an empty string if the budget of the plan holds `cost`.
  std::string Fits(const Cost& cost) const;

 private:
  Alternatives(const Job& job, const JobPlan& plan, const Ops& ops) : job_(job), plan_(plan), ops_(ops) {}

  const Job& job_;
  const JobPlan& plan_;
  const Ops& ops_;
  Cost own_;
};

// Returns "9.42 GiB" or "9.42 GiB + 12.2 GiB of host".
std::string Needs(const Cost& cost);

// Returns "saves 1.2 GiB", "adds 1.2 GiB" or "the same".
std::string Difference(int64_t bytes, int64_t than);

}  // namespace shale
