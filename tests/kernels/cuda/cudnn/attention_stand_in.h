// A stand-in for cuDNN. Its graphs compute with the reference ops what their keys describe. Like cuDNN, they see only
// strides, addresses and workspace, so that a wrong one shows in the results.
#pragma once

#include <cstdint>
#include <functional>
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

// Must outlive the objects that it returns. A graph runs on the stream of the stand-in runtime on which it is enqueued.
// Without a stream it runs at once, on plain memory. A graph overwrites its workspace.
class AttentionStandIn {
 public:
  std::unique_ptr<cuda::AttentionGraphs> Graphs();

  std::vector<cuda::AttentionKey> built;
  std::vector<AttentionCall> calls;
  int alive = 0;  // How many AttentionGraph and AttentionGraphs objects exist.

  // Set by tests.
  std::optional<int64_t> workspace_bytes;  // What a built graph says that it needs. If absent, all that it may have.
  int64_t more_bytes = 0;                  // Kernels need this much more than the planned workspace.
  absl::Status build_status, enqueue_status;
  std::function<absl::Status()> load_module;  // Called for each graph that is built. May be empty.
};

}  // namespace shale::testing
