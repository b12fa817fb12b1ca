// Plans a validated job before it starts: decides its programs, the addresses of their buffers, and the bytes that they
// need. To run a job or to show its plan, use ResolveJob (engine/api/plan.h), which decides everything else
// too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/graph_builder.h"
#include "engine/compile/memory/machine.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/work_limits.h"
#include "engine/compile/step/compile.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/variant.h"
#include "kernels/op_backend.h"

namespace shale {

struct GenerationSize;

// A program of a job with its graph, its addresses and its waits. Holds no references. May be moved, but not while an
// executor uses it, because the executor borrows program and plan.
struct PlannedProgram {
  ModelGraph graph;
  CompiledStep step;
  MemoryPlan memory;
};

struct JobPlan {
  StepOptions options;  // As compiled: the accumulation is decided.
  PlannedProgram train;
  PlannedProgram evaluate;  // Evaluates one micro-batch; has the same persistent buffers as `train`.
  // With runtime.generate: the programs of BuildGeneration, for one sequence (engine/plan/planner/generation.h). They
  // have the persistent buffers of `train` at the same addresses, and after them those of the cache.
  std::vector<PlannedProgram> generate;
  std::optional<PlannedProgram> snapshot;  // If StepOptions::snapshot is set; has the same persistent buffers.
  int64_t generate_peak_bytes() const;     // The largest peak of `generate`. 0 without runtime.generate.
  // Size of one rank's arena: the largest peak of train, evaluate and generate. It exceeds the Cost of the job where
  // the budget had room for scratch that the job does not need, but with which it is faster.
  int64_t arena_bytes = 0;
  HostMemoryPlan host_memory;       // One rank's pinned memory, for all programs and for checkpoints.
  Budget budget;                    // Bytes that one rank may plan, and bytes that it may offload.
  std::string accumulation_reason;  // Why this accumulation was chosen, with the numbers of the others.
  std::string searched;  // Why fields have the values that a search decided (DecidedFields::why). Empty: none did.
  // What each accumulation costs, in the order of the enum; one if the job names its accumulation.
  std::vector<Variant> candidates;
  const Variant& chosen() const;  // The one of `candidates` that is planned.
};

// Returns Admission::text for a job with this plan: "needs 31.2 GiB per rank, budget 40.0 GiB".
std::string AdmittedText(const JobPlan& plan);

// Return the graph options and the step options that a job asks for. The accumulation may still be kAuto. REQUIRES: the
// vocabulary is known, if the model has one.
GraphOptions GraphOptionsFor(const Job& job, GraphMode mode);
StepOptions StepOptionsFor(const Job& job);  // micro_batches is AccumulationSteps (engine/plan/config/job.h).

// Compiles and plans the job's programs, derives the waits between their streams, and proves the result with
// CheckProgram. One rank may plan memory.budget_bytes and may offload memory.host_budget_bytes to host memory. Where
// the job does not set them, the machine's default applies (Machine::default_budget; if that is empty, there is no
// limit).
//
// For accumulation AUTO, chooses among the accumulations that exist for the strategy and fit the budget: the one that
// communicates least, among equals the one that needs the least memory, and among equals again the first. If this
// machine was measured (Machine::profile), chooses the fastest of them (Drafter::Compile). With one micro-batch a step
// they are alike, so the first of them is chosen.
//
// Errors:
//   ResourceExhausted  Nothing fits: "needs 31.2 GiB per rank, budget 24.0 GiB, 7.20 GiB too little; fits with
//                      activation_checkpointing.preset=BLOCK (22.1 GiB) or sharding.accumulation=LAYERED (23.0 GiB)",
//                      or "offloads 31.2 GiB to host memory per rank, host budget ...". Each proposed setting was
//                      compiled too, with the ops of its own number of ranks. It can be given to --set as it stands,
//                      and does not change what is computed.
//   InvalidArgument    The strategy has no such accumulation; the vocabulary is unknown; the graph of a custom model is
//                      wrong; the program would be too long; a name pattern matches nothing.
//                      More ranks than the machine may have (Machine::most_ranks).
//   Errors of the machine's default budget, unless the job sets memory.budget_bytes.
//   Errors of `limits`, which it looks at after every few instructions that it compiles or proves.
//
// If the job does not fit, also stores in `refusal` what the message says, unless it is null. `job_with` makes the job
// with a proposed setting, as in Drafter: if it loads the job as its user does, each proposed setting does so too.
absl::StatusOr<JobPlan> PlanJob(const Job& job, const Machine& machine, const WorkLimits& limits = {},
                                Refusal* refusal = nullptr, const JobWith& job_with = {});

// Does the same, but plans a job that does not fit as well, with the accumulation that exceeds the budget least. Then
// says in `refusal` what is missing and what would make the job fit; otherwise resets it.
absl::StatusOr<JobPlan> PlanJobOfAnySize(const Job& job, const Machine& machine, std::optional<Refusal>& refusal,
                                         const JobWith& job_with = {});

// Does what PlanJobOfAnySize does, for a job that may run on another machine: only the budgets that the job sets itself
// count. If the default budget of `here` is too small for the job, or is an error, sets `remark` to a few lines that
// tell people about it, with what would make the job fit there. Otherwise makes `remark` empty.
absl::StatusOr<JobPlan> PlanJobForAnywhere(const Job& job, const Machine& here, std::string& remark,
                                           std::optional<Refusal>& refusal, const JobWith& job_with = {});

// Compiles and plans the programs of BuildGeneration. With the StepOptions of the job's plan they have its persistent
// buffers at the same addresses. Checks no budget.
absl::StatusOr<std::vector<PlannedProgram>> PlanGeneration(const Job& job, const StepOptions& options,
                                                           const GenerationSize& size, const Ops& ops);

// Compiles and plans one more program of a job. With the StepOptions of the job's plan (micro_batches may differ) it
// has the same persistent buffers at the same addresses. A kLogits program always runs one micro-batch. `ops` are the
// ops of one of the job's ranks (Machine::create_ops). Checks no budget: the peak may exceed JobPlan::arena_bytes.
absl::StatusOr<PlannedProgram> PlanProgram(const Job& job, const StepOptions& options, GraphMode mode, const Ops& ops,
                                           const MemoryPlanOptions& memory_options = {});

}  // namespace shale
