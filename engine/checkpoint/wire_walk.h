// Checks a serialized protobuf message before it is parsed.
//
// A parser makes an object of every submessage, and a submessage needs only two bytes, so parsing a file of 100 MiB of
// them would take gigabytes of memory. The parser would keep unknown fields too.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/descriptor.h"

namespace shale {

// The most elements that a repeated field may have in each message. Applies to all fields of that name, at any depth.
struct WireLimit {
  absl::string_view field;
  int64_t max = 0;
  absl::string_view what;  // Completes the error "more than 64 <what>".
};

// Checks `message` against its type and the limits, using almost no memory. Repeated fields without a limit may have
// any number of elements; this suits numbers of fixed width, which take no more memory than space in the file. A field
// that is not repeated may occur at most once. REQUIRES: `type` does not nest in itself.
//
// Returns InvalidArgument, whose message completes a sentence ("is malformed", "has more than ..."), if a limit is
// exceeded, if the bytes are not a message of this type, or if the message has a field, at any depth, that its type
// does not have. Such a field means that a newer program wrote the message, and the known fields alone may be
// misleading.
absl::Status CheckWire(const google::protobuf::Descriptor& type, absl::string_view message,
                       absl::Span<const WireLimit> limits);

}  // namespace shale
