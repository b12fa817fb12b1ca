// The sections of ExplainText, in their order. Each function returns a title, a text and an empty line, or an empty
// string if the section does not concern the job.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/report/explain.h"

namespace shale {

// A plan, and what it is compared with.
struct Explained {
  const Job& job;  // As it was planned: nothing is AUTO.
  const JobPlan& plan;
  Drafter& drafter;  // Of `job`, with the budget of `plan`.
  const Draft& own;  // Of the job itself.
  const WorkLimits& limits;
  const JobWith& job_with;  // Loads the job with other settings, as its user does. May be empty.

  int64_t ranks() const { return plan.options.mesh.ranks(); }
};

// A row of a table that compares the job with others.
struct ComparedRow {
  std::vector<std::string> name;  // Its first cells.
  std::vector<Override> overrides;
  bool is_own = false;  // The job itself.
  // What is said if the job cannot be planned with the overrides. Empty: that it is too large, or what else the error
  // is.
  std::string impossible = "";
};
// A column of such a table: its heading, and what it says of a row's draft.
struct Column {
  absl::string_view heading;
  std::function<std::string(const Draft&)> cell;
};
Column Needs();         // The arena and host memory.
Column NeedsInArena();  // The arena alone, beside InHostMemory.
Column InHostMemory();
Column AgainstThisJob(const Explained& x);  // Difference to the arena of the job.
Column OneRankSends();                      // In a step.
Column Activations();                       // MeasureActivations.
// Returns a table. Each row has its name, whose columns have the headings `names`, then the columns' cells, and at the
// end whether it is this job or does not fit. If the machine's speed is known, the seconds of a step are the last
// column, as predicted for the job of the row. Calls the cells of a row from left to right, and the rows in their
// order.
std::string CompareTable(const Explained& x, const std::vector<std::string>& names,
                         const std::vector<ComparedRow>& rows, const std::vector<Column>& columns);

// Returns the names of the rules that update parameters of the job: "AdamW and SGD".
std::string RulesInUse(const JobPlan& plan);

// Returns "saves 1.2 GiB", "adds 1.2 GiB" or "the same", against the job's arena or another.
std::string Difference(int64_t bytes, int64_t than);

// Returns a section: a title, a paragraph, a table if there is one, and an empty line.
std::string Section(absl::string_view title, absl::string_view text, absl::string_view table = "");

using SectionText = absl::StatusOr<std::string>;
SectionText ExplainWhereBytesGo(const Explained& x);
SectionText ExplainMatMuls(const Explained& x);
SectionText ExplainAttention(const Explained& x);
SectionText ExplainMicroBatches(const Explained& x);
// Compares K micro-batches with the same global batch as one micro-batch. For a job with K = 1, compares it with
// micro-batches of one sequence.
SectionText ExplainOnePiece(const Explained& x);
SectionText ExplainHeadroom(const Explained& x);
SectionText ExplainLearningRate(const Explained& x);
SectionText ExplainPacking(const Explained& x);
SectionText ExplainMix(const Explained& x);
SectionText ExplainTargetWeights(const Explained& x);
SectionText ExplainState(const Explained& x);
SectionText ExplainUpdate(const Explained& x);
SectionText ExplainCheckpointing(const Explained& x);
SectionText ExplainOffload(const Explained& x);
SectionText ExplainStateOffload(const Explained& x);
// Describes what other trainers call no_sync, which is accumulation NO_SYNC here. ZERO2 has no NO_SYNC, so the section
// then shows NO_SYNC with strategy ZERO1.
SectionText ExplainNoSync(const Explained& x);
SectionText ExplainStrategies(const Explained& x);
// Compares all other options of the table (engine/plan/planner/options.h).
SectionText ExplainOtherOptions(const Explained& x);

}  // namespace shale
