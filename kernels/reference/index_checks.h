// Checks of tokens, targets and positions. They are data from outside, so a value that is out of range is an
// error, which names the value. Kernels check before they use a value as an address.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/op_kinds.h"
#include "kernels/tensor.h"

namespace shale {

// Returns OutOfRange unless every token lies in [0, vocabulary). `op` names the op in the message.
absl::Status CheckTokens(absl::string_view op, const Tensor& tokens_BS, int64_t vocabulary);

// Returns OutOfRange unless every target is negative (ignored) or lies in [0, vocabulary). The targets may be strided.
absl::Status CheckTargets(absl::string_view op, const Tensor& targets_T, int64_t vocabulary);

// Returns OutOfRange unless every position id is 0 or one more than that of the token before in its sequence, and the
// first of a sequence is 0 ([Note: position ids] in kernels/ops/attention.h). Returns OK if there are none.
absl::Status CheckPositionIds(absl::string_view op, const Tensor& position_ids_BS);

// Returns OutOfRange unless every sequence begins at a position of at least 0 and its `length` tokens end by position
// `end` ([Note: begins] in kernels/ops/attention.h). Returns OK if there are no begins.
absl::Status CheckBegins(absl::string_view op, const Tensor& begins_B, int64_t length, int64_t end);

// Does the same for the cache of an op: positions end by the size of the cache, unless it only needs to hold a window.
absl::Status CheckBegins(const CachedAttention& op);

// Returns the position of the first token of sequence b.
inline int64_t BeginOf(const Tensor& begins_B, int64_t b) {
  return begins_B.present() ? begins_B.as<const int32_t>()[b] : 0;
}

// Returns the position of token t in its document. Sequences have `length` tokens.
inline int64_t PositionOf(const Tensor& position_ids_BS, int64_t t, int64_t length) {
  return position_ids_BS.present() ? position_ids_BS.as<const int32_t>()[t] : t % length;
}
// Does the same for an op that takes position ids or begins.
template <class OpType>
int64_t PositionIn(const OpType& op, int64_t t, int64_t length) {
  return PositionOf(op.position_ids_BS, t, length) + BeginOf(op.begins_B, t / length);
}

}  // namespace shale
