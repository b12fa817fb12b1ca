// Checks which elements of something a caller asks for.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale {

// Returns OutOfRange unless elements [begin, begin + count) exist: "parameter w has 6 elements; asked for 4 from number
// 3". `what` is the first part of the message. REQUIRES: count >= 0.
absl::Status CheckElements(absl::string_view what, int64_t elements, int64_t begin, int64_t count);

}  // namespace shale
