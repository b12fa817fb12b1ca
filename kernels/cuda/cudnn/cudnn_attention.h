// Attention by cuDNN, with deterministic gradients, for the ops that its kernels take (see TakenByCudnn), but not where
// our own kernels are known to be faster. Our own kernels compute all other ops.
//
// lse is exactly cuDNN's "stats", the natural logarithm of the sum of exp(scores). So an attention may run forward in
// cuDNN and backward in our kernels, or the other way round.
//
// The backward pass holds ds, which is S x S for every head (see WorkspaceBytes). It therefore runs in pieces, one
// after the other on the stream, in one workspace. A piece is a number of full sequences, or a few heads of one
// sequence. The split depends on shapes and on the scratch of the launch alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/backends.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/attention_rates.h"

namespace shale::cuda {

struct CudnnAttentionOptions {
  // The workspace of one piece that an op needs. A piece of a single key/value head may need more, up to
  // kLargestWorkspaceBytes. 256 MiB hold seven heads of 4,096 positions.
  int64_t workspace_bytes = int64_t{256} << 20;
  // Whether launches take larger pieces where they get more scratch (Ops::AmpleScratchBytes).
  bool grows = true;
  // If false, backward may sum in another order in every call, which is faster.
  bool deterministic = true;
  // Rates that were measured on the kind of GPU of the job. An op is left to our own kernels if these are faster
  // (AttentionRates::OwnIsFaster). Without rates, cuDNN computes all ops that it can.
  AttentionRates rates = {};
};

// Creates the backend. It calls `load` (usually LoadCudnn) when an attention is first prepared or enqueued, with the
// calling thread's current device. Takes and ScratchBytes need neither the library nor a GPU. Attention graphs live as
// long as the backend, which must outlive CUDA graphs that were captured from it.
std::unique_ptr<AttentionBackend> CreateCudnnAttention(
    std::function<absl::StatusOr<std::unique_ptr<AttentionGraphs>>()> load, CudnnAttentionOptions options = {});

}  // namespace shale::cuda
