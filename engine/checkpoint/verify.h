// Every byte of a checkpoint against its checksums.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shale {

struct Verified {
  int64_t bytes = 0;    // Read.
  int64_t damages = 0;  // Reported.
};

// Calls `damaged` with a line for everything that is wrong: each damaged chunk with its file and byte range, each file
// that is missing, of another size, no file or of no use, and what CheckpointReader::Open refuses besides. Unlike Open
// it does not stop at the first, and only needs a manifest that is whole: an error is returned for the manifest (as by
// ReadManifest) and for what the system refuses to read. `staging`, of at least kCheckpointChunkBytes, is all the
// memory it takes beyond the heads.
absl::StatusOr<Verified> VerifyCheckpoint(const std::string& folder, absl::Span<char> staging,
                                          absl::FunctionRef<void(const std::string& damage)> damaged);

}  // namespace shale
