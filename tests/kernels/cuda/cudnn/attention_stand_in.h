// What stands in for cuDNN: graphs that compute by the reference what their keys describe. They see strides, addresses
// and workspace only, as cuDNN does, so that a wrong one shows in the results.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/cudnn/attention_graph.h"

namespace shale::testing {

struct AttentionCall {
  cuda::AttentionKey key;
  cuda::AttentionAddresses operands;
  std::byte* workspace;
};

// Outlives what it gives. Graphs run on the stream of the stand-in runtime that they are enqueued on; without a stream
// at once, on plain memory. They overwrite their workspace.
class AttentionStandIn {
 public:
  std::unique_ptr<cuda::AttentionGraphs> Graphs();

  std::vector<cuda::AttentionKey> built;
  std::vector<AttentionCall> calls;
  int alive = 0;  // Graphs, and what builds them.

  // To be set by tests.
  std::optional<int64_t> workspace_bytes;  // Of graphs: else what they may have.
  absl::Status build_status, enqueue_status;
};

}  // namespace shale::testing
