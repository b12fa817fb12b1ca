// Writes a plan as a web page for people (`plan --html`).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/api/plan_text.h"
#include "engine/compile/program/live_bytes.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/planner/variant.h"

namespace shale {

// One column of the chart. Stands for one or more adjacent instructions, and shows the one with the most live bytes.
struct ChartColumn {
  InstructionId begin = 0, end = 0;  // Instructions [begin, end).
  InstructionId largest = 0;         // The first of them that has the most live bytes.
  LiveBytes live;                    // At `largest`.
  std::vector<BufferId> buffers;     // The largest live buffers at `largest`, largest first.
};

// Returns at most `most` columns of about equal width that together cover all instructions. Returns none if there are
// no instructions. Each column has at most `most_buffers` buffers. The largest column has the peak of the program.
std::vector<ChartColumn> ChartColumns(const StepProgram& program, int64_t most, size_t most_buffers);

// A change of a job that people ask about, and what it would cost.
struct ChangedJob {
  std::string what;  // "one more rank"
  Variant variant;
  double tokens = 0;  // Of a step of all ranks.
};
// Returns what one more rank, half the batch, twice the sequence, and the next preset of activation checkpointing would
// change, where the job can have that. Compiles the drafter's job with each, and counts the bytes that their plans
// have. Those for which the drafter's limits leave no time have the error of the limits as status.
std::vector<ChangedJob> ChangesOf(Drafter& drafter);

// Returns a complete HTML page about one rank's training step: live bytes by category over the instructions, as stacked
// areas with the peak marked; the moments of TimelineOf; and the buffers that are live at the peak. The page loads no
// other files. With `seconds.step`, it also shows the streams and the bytes over the seconds of the step, and on the
// same axis those of `measured`, a step of this program; with `seconds.search`, the time of the fastest ways against
// their memory, with this job among them; and `changes` as a table. Pointer or arrow keys choose an instruction, and
// the page shows its name and the largest buffers live at it. It follows the reader's choice of light or dark, and
// prints without its script. Its size is bounded by about 2,000 columns and 2,000 buffers, whatever the length of the
// program.
std::string PlanHtml(const Job& job, const JobPlan& plan, const PlanSeconds& seconds = {},
                     const std::vector<ChangedJob>& changes = {}, const MeasuredStep* measured = nullptr);

}  // namespace shale
