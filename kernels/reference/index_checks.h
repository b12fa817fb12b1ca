// Tokens and targets are data: a wrong one is an error that names it, found before any memory is addressed by it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/tensor.h"

namespace shale {

// That every token lies in [0, vocabulary). `op` names the op in the message.
absl::Status CheckTokens(absl::string_view op, const Tensor& tokens_BS, int64_t vocabulary);

// That every target is negative (ignored) or lies in [0, vocabulary). May be strided.
absl::Status CheckTargets(absl::string_view op, const Tensor& targets_T, int64_t vocabulary);

}  // namespace shale
