#include "engine/plan/planner/step_facts.h"

#include <algorithm>

#include "engine/plan/planner/summary.h"
#include "kernels/integers.h"

namespace shale {

StepFacts StepFactsOf(const Job& job, const JobPlan& plan, const proto::MachineProfile& machine, int64_t hosts) {
  const int64_t ranks = plan.options.mesh.ranks();
  const bool on_cpu = job.runtime.device == DeviceType::kCpu;
  const int64_t devices = std::max<int64_t>(1, machine.devices_per_host());
  const int64_t ranks_on_host = hosts > 0 ? CeilDivide(ranks, hosts)
                                : on_cpu  ? ranks
                                          : devices * std::max<int64_t>(1, job.runtime.ranks_per_device);
  return {.mesh = plan.options.mesh,
          .ranks_on_host = std::min(ranks, ranks_on_host),
          .threads_per_rank = std::max<int64_t>(1, job.runtime.threads_per_rank),
          .graphs = job.runtime.graphs,
          .narrow = job.precision.compute != ComputePrecision::kFloat32,
          .tokens = static_cast<double>(job.batch.global_batch) * static_cast<double>(job.batch.sequence_length),
          .flops_per_token = ModelFlopsPerToken(job, plan.train.graph)};
}

}  // namespace shale
