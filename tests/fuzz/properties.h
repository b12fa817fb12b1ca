// What every target asks of a parser, besides that it survives.
#pragma once

#include "absl/status/status.h"

namespace shale {

// That a refusal is one which a person can read in a terminal: InvalidArgument, DataLoss or Unimplemented, with a
// message of well-formed UTF-8 without control characters but line ends, not empty, and of at most 16 KiB whatever the
// input held.
void CheckRefusal(const absl::Status& status);

}  // namespace shale
