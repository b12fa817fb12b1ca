// Frames a message in a file, so that a reader detects damage: magic, version, checksum, length, message.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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

}  // namespace shale
