#include "engine/plan/planner/step_facts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/plan/planner/summary.h"
#include "engine/strings/printing.h"
#include "kernels/integers.h"

namespace shale {
StepFacts StepFactsOf(const Job& job, const ModelGraph& graph, const Mesh& mesh, const proto::MachineProfile& machine,
                      int64_t hosts) {
  const int64_t ranks = mesh.ranks();
  const bool on_cpu = job.runtime.device == DeviceType::kCpu;
  const int64_t devices = std::max<int64_t>(1, machine.devices_per_host());
  const int64_t ranks_on_host = hosts > 0 ? CeilDivide(ranks, hosts)
                                : on_cpu  ? ranks
                                          : devices * std::max<int64_t>(1, job.runtime.ranks_per_device);
  return {.mesh = mesh,
          .ranks_on_host = std::min(ranks, ranks_on_host),
          .threads_per_rank = ThreadsPerRank(job.runtime, ranks, machine.threads()),
          .graphs = UsesGraphs(job),
          .narrow = job.precision.compute != ComputePrecision::kFloat32,
          .tokens = static_cast<double>(job.batch.global_batch) * static_cast<double>(job.batch.sequence_length),
          .flops_per_token = ModelFlopsPerToken(job, graph)};
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
