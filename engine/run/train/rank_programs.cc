#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/run/runtime/profiler_ranges.h"
#include "engine/run/train/session.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Creates the ranges of a profiler, if the job asks for them or a profiler runs.
absl::Status CreateRanges(const Job& job, RankPrograms& programs) {
  if (!job.telemetry.nvtx && !ProfilerWantsNvtxRanges()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<ProfilerRanges>> ranges = CreateNvtxRanges();
  if (ranges.ok()) {
    programs.ranges = *std::move(ranges);
  } else if (job.telemetry.nvtx) {
    return ranges.status();
  } else {  // A program without NVTX trains under a profiler all the same.
    programs.why_no_ranges = absl::StrCat("the profiler gets no ranges: ", ranges.status().message());
  }
  return absl::OkStatus();
}

}  // namespace

std::string RankPrograms::Describe() const {
  const std::string devices = ranks->description();
  return absl::StrCat(devices, devices.empty() || why_no_ranges.empty() ? "" : "\n", why_no_ranges);
}

absl::StatusOr<RankPrograms> AllocateRanks(const ResolvedJob& resolved, std::vector<int> process_of_rank,
                                           bool evaluates, const TrainerOptions& options) {
  const Job& job = resolved.job;
  const JobPlan& plan = resolved.plan;
  RankPrograms programs;
  std::vector<ProgramAndPlan> all = {{plan.train.step.program, plan.train.memory},
                                     {plan.evaluate.step.program, plan.evaluate.memory}};
  for (const PlannedProgram& program : plan.generate) all.push_back({program.step.program, program.memory});
  SHALE_ASSIGN_OR_RETURN(programs.ranks, LocalRanks::Create(*options.backend,
                                                            {.mesh = plan.options.mesh,
                                                             .ranks = options.ranks,
                                                             .process_of_rank = std::move(process_of_rank),
                                                             .create_spanning_group = options.create_spanning_group,
                                                             .synchronous = job.runtime.synchronous,
                                                             .programs = std::move(all),
                                                             .host_memory = plan.host_memory},
                                                            plan.arena_bytes));
  SHALE_RETURN_IF_ERROR(CreateRanges(job, programs));
  LocalRanks& ranks = *programs.ranks;
  ExecutorOptions executor{
      .synchronous = job.runtime.synchronous, .graphs = UsesGraphs(job), .ranges = programs.ranges.get()};
  SHALE_ASSIGN_OR_RETURN(programs.train,
                         LocalProgram::Create(ranks, plan.train.step.program, plan.train.memory, executor));
  if (!plan.generate.empty()) {
    SHALE_ASSIGN_OR_RETURN(programs.sequences, Sequences::Create(ranks, plan.generate, PaddingToken(job), executor));
  }
  executor.graphs = executor.graphs && evaluates;  // Graphs that never run would take memory.
  SHALE_ASSIGN_OR_RETURN(programs.evaluate,
                         LocalProgram::Create(ranks, plan.evaluate.step.program, plan.evaluate.memory, executor));
  ranks.EnterMemory("graphs");
  return programs;
}

}  // namespace shale
