// What jobs on GPUs need, in plain C++: a program that was built without a CUDA toolkit plans them as one with it does.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/compile/memory/machine.h"
#include "engine/files/io/file.h"
#include "engine/plan/config/job.h"
#include "engine/run/backends/device_kind.h"
#include "kernels/cuda/availability.h"
#include "kernels/cuda/cudnn/attention_rates.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"

namespace shale {

// Returns whether NCCL runs the job's collectives.
bool UsesNccl(const Job& job);

// Returns InvalidArgument if the job has more ranks than its collectives support.
absl::Status CheckCudaRanks(const Job& job);

// See PlanningMachineOfProfile (engine/api/backend.h); `profile` may be null. `cudnn`: the program that runs the job
// has cuDNN for attention.
absl::StatusOr<Machine> CudaPlanningMachine(const Job& job, bool cudnn, HostOpsFactory create_host_ops,
                                            int64_t hardware_threads, const proto::MachineProfile* profile);

// GPUs of another machine, for programs that were built without CUDA: `create` is null. They plan for programs with
// cuDNN.
const DeviceKind& PlannedCudaDevice();

// Returns what the job says of attention by cuDNN, without the rates of a kind of GPU.
inline cuda::CudnnAttentionOptions AttentionOptionsOf(const Job& job) {
  cuda::CudnnAttentionOptions options{.deterministic = job.runtime.deterministic_attention};
  if (job.runtime.attention_workspace_bytes) {
    options.workspace_bytes = *job.runtime.attention_workspace_bytes;
    options.grows = false;
  }
  return options;
}

// Holds one file, tools/tuning/attention.txt.
extern const absl::Span<const CompiledFile> kCompiledAttention;

// Returns the rates of attention of all kinds of GPUs, from the one file in `tables`. Returns InvalidArgument if the
// file is no such table.
absl::StatusOr<cuda::AttentionRates> CompiledAttentionRates(absl::Span<const CompiledFile> tables = kCompiledAttention);

// Returns AttentionOptionsOf the job. If the job does not set runtime.cudnn_attention, adds the rates that were
// measured on such GPUs: they then decide whether cuDNN computes an attention that it supports. Returns InvalidArgument
// if the compiled table of rates is malformed.
absl::StatusOr<cuda::CudnnAttentionOptions> AttentionOptionsOn(const Job& job, const cuda::ComputeCapability& gpu);

}  // namespace shale
