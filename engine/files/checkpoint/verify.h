// Verifies every byte of a checkpoint against its checksums.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shale {

struct Verified {
  int64_t bytes = 0;    // Bytes read.
  int64_t damages = 0;  // Calls of `damaged`.
};

// Calls `damaged` with one line for each problem: each damaged chunk with its file and byte range, and each file that
// is missing, of another size than recorded, not a regular file, or unreadable because its disk is damaged. If there
// are none, calls it with the error of CheckpointReader::Open, if any. Unlike Open it does not stop at the first
// problem and needs only an intact manifest. Returns an error if the manifest cannot be read (see ReadManifest) or if
// the system refuses a read. Uses no memory besides the headers and `staging`, which must have at least
// kCheckpointChunkBytes.
absl::StatusOr<Verified> VerifyCheckpoint(const std::string& folder, absl::Span<char> staging,
                                          absl::FunctionRef<void(const std::string& damage)> damaged);

}  // namespace shale
