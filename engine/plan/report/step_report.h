// Text for people about where every byte of a memory plan goes, and where the seconds of a step go.
//
// TimelineOf summarizes the memory of a step over time: what is held after load, the peak of forward, and so on.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/compile/memory/plan.h"
#include "engine/compile/program/live_bytes.h"
#include "engine/compile/program/program.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/time/prediction.h"

namespace shale {

// Returns a report of the peak, its lower bound, the bytes by category at the peak, the instruction that reaches it
// (with unit, phase and micro-batch), and the largest live buffers with their names.
std::string MemoryReport(const StepProgram& program, const MemoryPlan& plan);

// What a rank's arena holds at one moment of a step.
struct Moment {
  std::string name;                // "held after load", "peak of backward".
  InstructionId instruction = -1;  // The first instruction that reaches the peak; -1 for what is held between steps.
  LiveBytes live;
};

// Returns the moments in the order of a step: what is held after load, the peak of each part of the step, and what is
// held after the step. Every instruction belongs to one part:
//
//   begin     counts of tokens and scalars, before the micro-batches
//   forward   forward, up to the loss
//   loss      forward while workspace of the loss is live: final norm, logits, and their gradient
//   backward  recomputation and backward
//   reduce    collectives and sums of gradients
//   update    norms of gradients, the optimizer, and gathers of updated weights
//   end       collectives of the totals, and their copy to the host
//
// Parts that a program does not have are left out. The largest moment equals MemoryPlan::lower_bound_bytes. The bytes
// follow from lifetimes; nothing is sampled.
std::vector<Moment> TimelineOf(const StepProgram& program);

// Returns the categories that have bytes at any of the moments, in the order of the enum.
std::vector<BufferCategory> CategoriesOf(const std::vector<Moment>& moments);

// Returns the instruction, unit and op at which a moment is reached: "57 blocks.3 MatMul". Returns "" for what is held
// between steps.
std::string ReachedAt(const StepProgram& program, const Moment& moment);

// Returns the moments as a table for people, with a column for each category of CategoriesOf.
std::string TimelineText(const StepProgram& program, const std::vector<Moment>& moments);

// Returns a table of facts: a name, and a text that is wrapped.
std::string FactsTable(const std::vector<std::pair<std::string, std::string>>& facts);

// Returns what `plan` prints about the seconds of a step: how long it takes and how well that is known, tokens a
// second, what it waits for, and how busy the streams are. Ends in a newline.
std::string TimeText(const Prediction& prediction);

// Returns what evaluations and saves of a planned job take, and how often they are, or that it is not known. `step` is
// the prediction of its step. Ends in a newline.
std::string PausesText(const Job& job, const JobPlan& plan, const PauseTimes& pauses, const Prediction& step);

// Returns the critical path as a table: each kind of instruction in each kind of unit that it goes through.
std::string PathText(const Prediction& prediction);

}  // namespace shale
