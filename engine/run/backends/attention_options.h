// What a job says of attention by cuDNN.
#pragma once

#include "engine/plan/config/job.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"

namespace shale {

inline cuda::CudnnAttentionOptions AttentionOptionsOf(const Job& job) {
  return {.workspace_bytes = job.runtime.attention_workspace_bytes,
          .deterministic = job.runtime.deterministic_attention};
}

}  // namespace shale
