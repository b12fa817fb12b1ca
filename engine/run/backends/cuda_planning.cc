#include "engine/run/backends/cuda_planning.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cuda/cublaslt/tuning_table.h"
#include "kernels/cuda/planned_ops.h"
#include "kernels/cuda/work_division.h"
#include "proto/machine.pb.h"

namespace shale {
namespace {

absl::StatusOr<Machine> PlannedMachine(const Job& job, HostOpsFactory create_host_ops, int64_t hardware_threads,
                                       const proto::MachineProfile* profile) {
  return CudaPlanningMachine(job, job.runtime.cudnn_attention.value_or(true), std::move(create_host_ops),
                             hardware_threads, profile);
}

}  // namespace

bool UsesNccl(const Job& job) {
  const RuntimeConfig& runtime = job.runtime;
  return runtime.collectives == CollectivesKind::kNccl ||
         (runtime.collectives == CollectivesKind::kAuto && (runtime.ranks_per_device == 1 || runtime.nccl_shares_gpus));
}

absl::Status CheckCudaRanks(const Job& job) {
  if (UsesNccl(job) || job.sharding.ranks <= cuda::kMostSummedRanks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "sharding.ranks: collectives between ranks that share a GPU, and IN_PROCESS collectives, support at most ",
      cuda::kMostSummedRanks, " ranks, and the job has ", job.sharding.ranks,
      "; use fewer, or runtime.collectives NCCL with runtime.ranks_per_device 1"));
}

absl::StatusOr<cuda::AttentionRates> CompiledAttentionRates(absl::Span<const CompiledFile> tables) {
  SHALE_CHECK(tables.size() == 1) << tables.size();
  absl::StatusOr<cuda::AttentionRates> rates = cuda::AttentionRates::Parse(tables[0].text);
  if (rates.ok()) return rates;
  return absl::InvalidArgumentError(absl::StrCat("tools/tuning/", tables[0].name, ": ", rates.status().message()));
}

absl::StatusOr<cuda::CudnnAttentionOptions> AttentionOptionsOn(const Job& job, const cuda::ComputeCapability& gpu) {
  cuda::CudnnAttentionOptions options = AttentionOptionsOf(job);
  if (job.runtime.cudnn_attention) return options;
  SHALE_ASSIGN_OR_RETURN(const cuda::AttentionRates rates, CompiledAttentionRates());
  options.rates = rates.On(gpu);
  return options;
}

absl::StatusOr<Machine> CudaPlanningMachine(const Job& job, bool cudnn, HostOpsFactory create_host_ops,
                                            int64_t hardware_threads, const proto::MachineProfile* profile) {
  SHALE_RETURN_IF_ERROR(CheckCudaRanks(job));
  Machine machine;
  machine.hardware_threads = hardware_threads;
  cuda::ComputeCapability gpu;
  if (profile != nullptr && profile->has_compute_minor()) {
    gpu = {.major = profile->compute_major(), .minor = profile->compute_minor()};
  }
  SHALE_ASSIGN_OR_RETURN(cuda::CudnnAttentionOptions attention, AttentionOptionsOn(job, gpu));
  machine.create_ops = [cudnn, gpu, attention = std::move(attention),
                        create_host_ops = std::move(create_host_ops)](int64_t ranks) {
    return CreatePlannedCudaOps(
        {.matmul_workspace_bytes = cuda::kMatMulWorkspaceBytes,
         .attention = cudnn ? cuda::CreateCudnnAttention(
                                  []() -> absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>> {
                                    return absl::FailedPreconditionError("cuDNN is not loaded to plan");
                                  },
                                  attention)
                            : nullptr,
         .host = create_host_ops(ranks),
         .gpu = gpu});
  };
  return machine;
}

const DeviceKind& PlannedCudaDevice() {
  static constexpr DeviceKind kind = {.host_ops = nullptr,
                                      .create = nullptr,
                                      .prepare_environment = [](const Job&) {},
                                      .planning_machine = PlannedMachine};
  return kind;
}

}  // namespace shale
