// The property that every fuzz target checks, besides that the parser does not crash.
#pragma once

#include "absl/status/status.h"

namespace shale {

// Checks that a person can read the error in a terminal: it is InvalidArgument, DataLoss or Unimplemented, and its
// message is not empty, is well-formed UTF-8, has no control characters except line ends, and has at most 16 KiB
// whatever the input is.
void CheckRefusal(const absl::Status& status);

}  // namespace shale
