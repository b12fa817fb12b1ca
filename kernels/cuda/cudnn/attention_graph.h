// What a library is asked to compute: one attention, forward or backward, whose shapes, strides and mask are fixed. A
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
#include "kernels/op_backend.h"
#include "kernels/ops.h"

namespace shale::cuda {

// In the order of AttentionBackward; the first five are those of AttentionForward.
enum AttentionOperand { kQ, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV, kAttentionOperands };

// By operand; those that the direction does not have are null.
using AttentionAddresses = std::array<void*, kAttentionOperands>;

// All that decides what a graph is.
struct AttentionKey {
  // Elements from one sequence, position and head to the next. The D elements of a head are dense.
  struct Strides {
    int64_t sequence = 0, position = 0, head = 0;
    friend auto operator<=>(const Strides&, const Strides&) = default;
  };

  bool backward = false;
  int64_t batch = 0, length = 0, heads = 0, groups = 0, width = 0;  // B, S, H, G, D
  int64_t window = 0;                                               // Less than S; 0: none.
  float scale = 1;
  std::array<Strides, kAttentionOperands> strides;  // But of lse, which is f32 and contiguous: [B, H, S].

  // Of an op, bound or symbolic.
  static AttentionKey Of(const AttentionForward& op);
  static AttentionKey Of(const AttentionBackward& op);

  // "attention backward B=1 S=4096 H=28 G=4 D=128 window=0 scale=0.0883883".
  std::string ToString() const;

  friend auto operator<=>(const AttentionKey&, const AttentionKey&) = default;
};

// Of a bound op.
AttentionAddresses AddressesOf(const AttentionForward& op);
AttentionAddresses AddressesOf(const AttentionBackward& op);

class AttentionGraph {
 public:
  virtual ~AttentionGraph() = default;
  virtual int64_t workspace_bytes() const = 0;
  // `workspace` has workspace_bytes, whatever they hold. It and the operands belong to the graph until that has
  // finished on `stream`.
  virtual absl::Status Enqueue(const AttentionAddresses& operands, std::byte* workspace, StreamHandle stream) = 0;
};

// From one thread at a time, with its graphs, which it outlives.
class AttentionGraphs {
 public:
  virtual ~AttentionGraphs() = default;
  // Kernels that need more than `workspace_bytes` are not considered. Unimplemented if there is no other. Every graph's
  // bits are the same from call to call. REQUIRES: TakenByCudnn (attention_pieces.h) of the op.
  virtual absl::StatusOr<std::unique_ptr<AttentionGraph>> Build(const AttentionKey& key, int64_t workspace_bytes) = 0;
};

}  // namespace shale::cuda
