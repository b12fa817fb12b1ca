// AttentionGraph: one attention, forward or backward, that a library computes for fixed shapes, strides and mask. A
// graph is built once (cuDNN compiles a kernel, which takes about a second) and enqueued often.
//
// B sequences of S positions, H query heads, G key/value heads, D head width.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/cuda/handles.h"
#include "kernels/dtype.h"
#include "kernels/op_backend.h"

namespace shale {
struct AttentionForward;   // kernels/ops/attention.h
struct AttentionBackward;  // kernels/ops/attention.h
}  // namespace shale

namespace shale::cuda {

// The operands in the order of AttentionBackward. The first five are the operands of AttentionForward.
enum AttentionOperand { kQ, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV, kAttentionOperands };

// Addresses, indexed by AttentionOperand. An operand that the direction does not have is null.
using AttentionAddresses = std::array<void*, kAttentionOperands>;

// Everything that a graph depends on: ops with equal keys share one graph.
struct AttentionKey {
  // Distances, in elements, from one sequence, position or head to the next. The D elements of a head are contiguous.
  struct Strides {
    int64_t sequence = 0, position = 0, head = 0;
    friend auto operator<=>(const Strides&, const Strides&) = default;
  };

  bool backward = false;
  bool deterministic = true;  // If false, a backward graph may sum in another order in every call.
  int64_t batch = 0, length = 0, heads = 0, groups = 0, width = 0;  // B, S, H, G, D
  int64_t window = 0;                                               // Less than S; 0 means no window.
  bool causal = true;
  DType dtype = DType::kBFloat16;  // Or kFloat16.
  float scale = 1;
  std::array<Strides, kAttentionOperands> strides;  // Unset for lse, which is f32 and contiguous: [B, H, S].

  // Returns the key of an op, which need not be bound to memory.
  static AttentionKey Of(const AttentionForward& op);
  static AttentionKey Of(const AttentionBackward& op);

  // Example: "attention backward B=1 S=4096 H=28 G=4 D=128 window=0 scale=0.0883883", with ", f16", ", not causal" and
  // ", not deterministic" behind it if it is so.
  std::string ToString() const;

  friend auto operator<=>(const AttentionKey&, const AttentionKey&) = default;
};

// Returns the addresses of the operands of a bound op.
AttentionAddresses AddressesOf(const AttentionForward& op);
AttentionAddresses AddressesOf(const AttentionBackward& op);

// A graph that AttentionGraphs::Build has built.
class AttentionGraph {
 public:
  virtual ~AttentionGraph() = default;
  virtual int64_t workspace_bytes() const = 0;
  // Enqueues the attention on `stream`. `workspace` has workspace_bytes() bytes, whose contents do not matter. The
  // workspace and the operands belong to the graph until it has finished on `stream`.
  virtual absl::Status Enqueue(const AttentionAddresses& operands, std::byte* workspace, StreamHandle stream) = 0;
};

// Builds graphs, which it must outlive. Only one thread at a time may use it and its graphs.
class AttentionGraphs {
 public:
  virtual ~AttentionGraphs() = default;
  // Builds a graph from a kernel that needs at most `workspace_bytes`. Returns Unimplemented if there is no such
  // kernel. If its key is deterministic, a graph computes the same bits in every call. REQUIRES: TakenByCudnn
  // (attention_pieces.h) of the op.
  virtual absl::StatusOr<std::unique_ptr<AttentionGraph>> Build(const AttentionKey& key, int64_t workspace_bytes) = 0;
};

}  // namespace shale::cuda
