// Frame and Unframe put a message into a file and take it out, so that a reader detects damage: magic, version,
// checksum, length, message. CheckWire checks a message before it is parsed.
//
// The parser of protobuf makes an object of every submessage, and a submessage needs only two bytes, so parsing a file
// of 100 MiB of them would take gigabytes of memory. The parser would keep unknown fields too.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/descriptor.h"

namespace shale {

inline constexpr int64_t kFrameHeadBytes = 24;

// Returns the framed message. REQUIRES: `magic` has 8 bytes.
std::string Frame(absl::string_view magic, uint32_t version, absl::string_view message);

// Returns the length of the message that follows a frame header. Reads only the header's kFrameHeadBytes, so that it
// can be called before the message is read. Returns InvalidArgument for fewer bytes than that, another magic, or a
// message of more than `max_bytes`.
absl::StatusOr<int64_t> FramedBytes(absl::string_view magic, absl::string_view head, int64_t max_bytes);

// Returns the framed message at the start of `bytes`, as a view into them. Returns InvalidArgument for everything that
// FramedBytes refuses, for fewer bytes than the header claims, and for a wrong checksum; Unimplemented for another
// version. The checksum also covers magic, version and length, and is checked before the version, so that a version
// number that a damaged disk made up counts as damage.
absl::StatusOr<absl::string_view> Unframe(absl::string_view magic, uint32_t version, absl::string_view bytes,
                                          int64_t max_bytes);

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
