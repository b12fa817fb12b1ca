// Explains a plan in text: why it needs what it needs, and what the job would need with other settings.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/compile/memory/machine.h"
#include "engine/compile/program/work_limits.h"
#include "engine/plan/planner/job_plan.h"

namespace shale {

// Returns a report that says where every byte goes, what attention scores would take if they were stored, what K
// micro-batches add and why, what the same global batch needs in one piece, which micro-batch would fit, how the
// learning rate follows from the batch, what each form of a parameter's state takes, what the optimizer step adds, what
// each preset of activation checkpointing saves and costs in FLOPs, what offload and offload_state would save and move,
// what accumulating unsharded (no_sync) would cost, and what other strategies and all other options
// (engine/plan/planner/options.h) would need. Compiles and plans the job with each of these, which takes seconds for
// the largest models. `machine` is the one that `plan` was made with; its budget is not used. If its speed is known,
// tables also say how long a step would take. The report ends in a newline.
//
// `job_with` loads the job with other settings, as in ResolveJob. Of the other options, those with which it does not
// load are left out.
//
// When the time of `limits` is over, the report has the sections that were finished until then, and names the others.
// If not even the first could be, returns DeadlineExceeded.
absl::StatusOr<std::string> ExplainText(const Job& job, const JobPlan& plan, const Machine& machine,
                                        const WorkLimits& limits = {}, const JobWith& job_with = {});

}  // namespace shale
