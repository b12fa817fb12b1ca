// The start-up bench: the time to allocate the ranks of a job and to fill its weights with random values, as `train`
// does before the first step. Prints a row of JSON, with the seconds of the processor too, which depend less on what
// else runs on the machine, and with a digest of the state.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "engine/api/backend.h"
#include "engine/plan/planner/summary.h"
#include "engine/run/runtime/local_ranks.h"
#include "engine/run/state/local_state.h"
#include "engine/run/state/rank_state.h"
#include "engine/run/train/starting_state.h"
#include "kernels/check.h"
#include "tools/bench/planned_job.h"
#include "tools/bench/support.h"
#include "tools/command_line.h"

namespace shale {
namespace {

struct Flags {
  std::string job;
  std::vector<std::string> overrides;
  int64_t repetitions = 3;
};

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double ProcessorNow() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

absl::Status Measure(const Flags& flags) {
  SHALE_ASSIGN_OR_RETURN(const ResolvedJob resolved, ResolveBenchJob(flags.job, flags.overrides));
  const JobPlan& plan = resolved.plan;
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(resolved.job));
  std::vector<double> allocate, fill, fill_processor;
  uint64_t digest = 0;
  for (int64_t i = 0; i < flags.repetitions; ++i) {
    double begin = Now();
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<LocalRanks> ranks,
                           LocalRanks::Create(*backend,
                                              {.mesh = plan.options.mesh,
                                               .programs = {{plan.train.step.program, plan.train.memory}},
                                               .host_memory = plan.host_memory},
                                              plan.arena_bytes));
    allocate.push_back(Now() - begin);
    LocalState state(plan.train.graph, plan.train.step.state, plan.train.memory, *ranks);
    begin = Now();
    const double processor_begin = ProcessorNow();
    SHALE_RETURN_IF_ERROR(SetInitialWeights(resolved.job, state));
    fill.push_back(Now() - begin);
    fill_processor.push_back(ProcessorNow() - processor_begin);
    if (i > 0) continue;
    for (RankRuntime* rank : ranks->runtimes()) {
      SHALE_ASSIGN_OR_RETURN(const StateDigest of_rank,
                             DigestOfState(Digested::kAll, plan.train.step.state, plan.train.memory, *rank));
      digest = digest * 31 + (uint64_t{of_rank.everywhere} << 32 | of_rank.column);
    }
  }
  absl::PrintF("{\"parameters\": %d, \"ranks\": %d, \"threads_per_rank\": %d, \"allocate\": %.3f, \"fill\": %.3f, ",
               CountParameters(plan.train.graph), plan.options.mesh.ranks(), resolved.job.runtime.threads_per_rank,
               Median(allocate), Median(fill));
  absl::PrintF("\"fill_processor\": %.3f, \"state\": \"%016x\"}\n", Median(fill_processor), digest);
  return absl::OkStatus();
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("start_up", "Times the allocation of a job's ranks and the filling of its weights.");
  line.Text("job", "FILE", "The job spec, text or binary. Its data need not exist.", &flags.job).Required();
  line.List("set", "PATH=VALUE", "Overrides a field of the job.", &flags.overrides);
  line.Integer("repetitions", "How often to measure. Medians are printed.", 1, 1000, &flags.repetitions);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Measure(flags);
  if (status.ok()) return shale::kExitOk;
  std::fprintf(stderr, "start_up: %s\n", std::string(status.message()).c_str());
  return shale::kExitFailed;
}
