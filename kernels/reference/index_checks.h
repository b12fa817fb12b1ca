// Checks of tokens, targets and position ids. They are data from outside, so a value that is out of range is an
// error, which names the value. Kernels check before they use a value as an address.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/tensor.h"

namespace shale {

// Returns OutOfRange unless every token lies in [0, vocabulary). `op` names the op in the message.
absl::Status CheckTokens(absl::string_view op, const Tensor& tokens_BS, int64_t vocabulary);

// Returns OutOfRange unless every target is negative (ignored) or lies in [0, vocabulary). The targets may be strided.
absl::Status CheckTargets(absl::string_view op, const Tensor& targets_T, int64_t vocabulary);

// Returns OutOfRange unless every position id is 0 or one more than that of the token before in its sequence, and the
// first of a sequence is 0 ([Note: position ids] in kernels/ops/attention.h). Returns OK if there are none.
absl::Status CheckPositionIds(absl::string_view op, const Tensor& position_ids_BS);

// Returns the position of token t in its document. Sequences have `length` tokens.
inline int64_t PositionOf(const Tensor& position_ids_BS, int64_t t, int64_t length) {
  return position_ids_BS.present() ? position_ids_BS.as<const int32_t>()[t] : t % length;
}

}  // namespace shale
