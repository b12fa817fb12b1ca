// Checks of tokens and targets. They are data from outside, so a value that is out of range is an error, which names
// the value. Kernels check before they use a value as an address.
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

}  // namespace shale
