#include "engine/api/backend.h"
#include "tools/bench/gpu.h"

namespace shale {

absl::StatusOr<std::unique_ptr<Backend>> CreateJobGpuBackend(const GpuBackendOptions& options) {
  Job job;
  job.sharding.ranks = options.ranks;
  job.runtime.device = DeviceType::kCuda;
  job.runtime.ranks_per_device = options.ranks_per_device;
  job.runtime.collectives = options.nccl ? CollectivesKind::kNccl : CollectivesKind::kInProcess;
  job.runtime.nccl_shares_gpus = options.nccl && options.ranks_per_device > 1;
  job.runtime.tuning_table = options.tuning_table;
  job.runtime.cudnn_attention = !options.own_attention;
  return CreateBackendOfProcess(job, options.place);
}

}  // namespace shale
