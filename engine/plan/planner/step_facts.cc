#include "engine/plan/planner/step_facts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/plan/config/job_files.h"
#include "engine/plan/planner/summary.h"
#include "engine/strings/printing.h"
#include "kernels/integers.h"

namespace shale {
StepFacts StepFactsOf(const Job& job, const ModelGraph& graph, const Mesh& mesh, const proto::MachineProfile& machine,
                      const RankPlaces& places) {
  StepFacts facts = FactsOfSeconds(job, mesh, machine, places);
  facts.flops_per_token = ModelFlopsPerToken(job, graph);
  facts.float8_flops_per_token = Float8FlopsPerToken(graph);
  return facts;
}

StepFacts FactsOfSeconds(const Job& job, const Mesh& mesh, const proto::MachineProfile& machine,
                         const RankPlaces& places) {
  const int64_t ranks = mesh.ranks();
  const bool on_cpu = job.runtime.device == DeviceType::kCpu;
  const int64_t devices = std::max<int64_t>(1, machine.devices_per_host());
  const int64_t ranks_on_host =
      std::min(ranks, places.hosts > 0 ? CeilDivide(ranks, places.hosts)
                      : on_cpu         ? ranks
                                       : devices * std::max<int64_t>(1, job.runtime.ranks_per_device));
  const int64_t hosts = CeilDivide(ranks, ranks_on_host);
  return {.mesh = mesh,
          .ranks_on_host = ranks_on_host,
          .processes = std::clamp(places.processes, hosts, ranks),
          .threads_per_rank = ThreadsPerRank(job.runtime, on_cpu ? ranks_on_host : ranks, machine.threads()),
          .graphs = UsesGraphs(job),
          .narrow = job.precision.compute != ComputePrecision::kFloat32,
          .tokens = static_cast<double>(job.batch.global_batch) * static_cast<double>(job.batch.sequence_length)};
}

int64_t CheckpointBytes(const Job& job, const JobPlan& plan) {
  // Values that train take 4 bytes per element in every form; the optimizer's states come on top.
  int64_t bytes = 0;
  const int64_t replicas = plan.options.mesh.replicate;
  for (const GroupState& g : plan.train.step.state.groups) {
    if (g.frozen) {
      if (!HasBase(job)) bytes += CeilDivide(g.saved.bytes(), replicas);
      continue;
    }
    bytes += 4 * CeilDivide(g.layout().shard_elements(), replicas);
    for (const Tensor& state : g.saved.states) bytes += CeilDivide(state.extent_bytes(), replicas);
  }
  return bytes;
}

PauseTimes PredictPauses(const Job& job, const JobPlan& plan, const proto::MachineProfile& machine,
                         const RankPlaces& places) {
  const StepFacts facts = StepFactsOf(job, plan, machine, places);
  Predictor predictor(machine);
  const auto seconds = [&](const StepProgram& program) { return predictor.SecondsOf(program, facts).seconds; };
  PauseTimes times;
  if (job.data.has_evaluation()) {
    const DataConfig& data = job.data;
    const bool has_own = !data.evaluation_path.empty() || data.evaluation_fraction > 0;
    const int64_t sources = std::ssize(data.evaluation_sources) + (has_own ? 1 : 0);
    const int64_t runs = CeilDivide(job.telemetry.evaluation_sequences, job.batch.micro_batch * job.sharding.ranks);
    times.evaluation_seconds = static_cast<double>(sources * runs) * seconds(plan.evaluate.step.program);
  }
  if (machine.disk_bytes_per_second() > 0) {
    times.write_seconds = static_cast<double>(CheckpointBytes(job, plan)) * static_cast<double>(facts.ranks_on_host) /
                          machine.disk_bytes_per_second();
  }
  times.save_seconds = plan.snapshot ? seconds(plan.snapshot->step.program) : times.write_seconds;
  return times;
}

DefaultBudget BudgetOn(const proto::MachineProfile& machine) {
  return [bytes = machine.device_bytes(), major = machine.compute_major(),
          name = machine.name()](int64_t ranks) -> absl::StatusOr<Budget> {
    const int64_t libraries = GpuLibraryBytes(/*nccl=*/ranks > 1, major);
    return Budget{.bytes = std::max<int64_t>(0, bytes - libraries),
                  .origin = absl::StrCat("the memory of a GPU of ", name, " less ", FormatBytes(libraries))};
  };
}

}  // namespace shale
