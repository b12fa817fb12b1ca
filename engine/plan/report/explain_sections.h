// The sections of ExplainText, in their order. Each function returns a title, a text and an empty line, or an empty
// string if the section does not concern the job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/job_plan.h"

namespace shale {

// A plan, and what it is compared with.
struct Explained {
  const Job& job;  // As it was planned: nothing is AUTO.
  const JobPlan& plan;
  Drafter& drafter;  // Of `job`, with the budget of `plan`.
  const Draft& own;  // Of the job itself.
  const WorkLimits& limits;

  int64_t ranks() const { return plan.options.mesh.ranks(); }
};

// A row of a table that compares the job with others.
struct ComparedRow {
  std::vector<std::string> name;  // Its first cells.
  std::vector<Override> overrides;
  bool is_own = false;                   // The job itself.
  std::string impossible = "too large";  // What is said if the job cannot be planned with the overrides.
};
// Returns the table, under `headings`. Of each row it has the name, what `cells` returns for the row's draft, and at
// the end whether it is this job or does not fit.
std::string CompareTable(const Explained& x, std::vector<std::string> headings, const std::vector<ComparedRow>& rows,
                         absl::FunctionRef<std::vector<std::string>(const Draft&)> cells);

// Returns "9.42 GiB" or "9.42 GiB + 12.2 GiB of host".
std::string Needs(const Cost& cost);

// Returns "saves 1.2 GiB", "adds 1.2 GiB" or "the same", against the job's arena or another.
std::string Difference(int64_t bytes, int64_t than);

std::string ExplainWhereBytesGo(const Explained& x);
std::string ExplainAttention(const Explained& x);
absl::StatusOr<std::string> ExplainMicroBatches(const Explained& x);

// Compares K micro-batches with the same global batch as one micro-batch. For a job with K = 1, compares it with
// micro-batches of one sequence.
std::string ExplainOnePiece(const Explained& x);
absl::StatusOr<std::string> ExplainHeadroom(const Explained& x);
absl::StatusOr<std::string> ExplainLearningRate(const Job& job);
std::string ExplainPacking(const Job& job);
std::string ExplainMix(const Job& job);
std::string ExplainTargetWeights(const Job& job);
std::string ExplainState(const Explained& x);
std::string ExplainUpdate(const Explained& x);
std::string ExplainCheckpointing(const Explained& x);
std::string ExplainOffload(const Explained& x);
std::string ExplainStateOffload(const Explained& x);

// Describes what other trainers call no_sync, which is accumulation NO_SYNC here. ZERO2 has no NO_SYNC, so the section
// then shows NO_SYNC with strategy ZERO1.
std::string ExplainNoSync(const Explained& x);
std::string ExplainStrategies(const Explained& x);

// Compares all other options of the table (engine/plan/planner/options.h).
std::string ExplainOtherOptions(const Explained& x);

}  // namespace shale
