// A message in a file, so that damage is noticed: magic, version, checksum, length, message.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

inline constexpr int64_t kFrameHeadBytes = 24;

// `magic` has 8 bytes.
std::string Frame(absl::string_view magic, uint32_t version, absl::string_view message);

// The length of the message behind a head of kFrameHeadBytes, before it was read. InvalidArgument for another magic or
// a message of more than `max_bytes`.
absl::StatusOr<int64_t> FramedBytes(absl::string_view magic, absl::string_view head, int64_t max_bytes);

// The message at the start of `bytes`. InvalidArgument for what FramedBytes refuses, for fewer bytes than it says, and
// for a checksum that does not match; Unimplemented for another version. The checksum covers magic, version and length
// too and comes first: a version that a damaged disk made up is damage.
absl::StatusOr<absl::string_view> Unframe(absl::string_view magic, uint32_t version, absl::string_view bytes,
                                          int64_t max_bytes);

}  // namespace shale
