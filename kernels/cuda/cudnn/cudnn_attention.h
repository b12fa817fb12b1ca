// Attention by cuDNN: what its kernels take (see TakenByCudnn), with deterministic gradients. For the rest our own.
//
// lse is cuDNN's "stats" to the letter, the natural logarithm of the sum of exp(scores): an attention may go forward
// here and backward in our kernels, or the other way round.
//
// The backward holds ds, of S x S for every head (see WorkspaceBytes). So it runs in pieces, one after the other on the
// stream, in one workspace: whole sequences, or a few heads of one. Which belong together is a matter of shapes alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/backends.h"
#include "kernels/cuda/cudnn/attention_graph.h"

namespace shale::cuda {

struct CudnnAttentionOptions {
  // Of a piece; one of a single key/value head may need more, up to kLargestWorkspaceBytes. 256 MiB are eight heads of
  // 4,096 positions, which keep every H200 busy.
  int64_t workspace_bytes = int64_t{256} << 20;
};

// `load` (LoadCudnn) is called when an attention is first prepared or enqueued, on that thread's device: Takes and
// ScratchBytes need neither library nor GPU. Graphs live as long as the backend, which must outlive CUDA graphs that
// were recorded from it.
std::unique_ptr<AttentionBackend> CreateCudnnAttention(
    std::function<absl::StatusOr<std::unique_ptr<AttentionGraphs>>()> load, CudnnAttentionOptions options = {});

}  // namespace shale::cuda
