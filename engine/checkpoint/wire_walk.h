// A look at a serialized message before anything is built from it.
//
// A parser makes an object of every submessage, and two bytes are enough for one: a file of 100 MiB of them would take
// gigabytes. Unknown fields would be kept too.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/descriptor.h"

namespace shale {

// How many elements a repeated field may have, in each message that has it.
struct WireLimit {
  absl::string_view field;
  int64_t max = 0;
  absl::string_view what;  // "more than 64 <what>".
};

// REQUIRES: `type` does not nest in itself. Repeated fields that no limit names may have any number of elements: right
// for numbers of fixed width, which take no more memory than they take in the file. A field that is not repeated may
// occur once. Takes no memory to speak of.
//
// InvalidArgument, as the end of a sentence ("is malformed", "has more than ..."), for what exceeds a limit, what is no
// message of this type, and for fields that the type does not have, at any depth: a newer program wrote the message
// then, and it means more than what is known of it.
absl::Status CheckWire(const google::protobuf::Descriptor& type, absl::string_view message,
                       absl::Span<const WireLimit> limits);

}  // namespace shale
