// Writes the shard file of one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/manifest.h"
#include "engine/io/file_system.h"
#include "kernels/element_range.h"

namespace shale {

// Elements of one part of one parameter, in any memory that the CopyToHost of WriteShard can read. Borrows them.
struct PieceSource {
  int32_t parameter = 0;  // Index into Manifest::parameters.
  SavedPart part = SavedPart::kValue;
  ElementRange range;  // Elements of the part.
  int64_t element_bytes = 4;
  const std::byte* data = nullptr;
};

// Copies data to host memory. The copy is complete when the call returns.
using CopyToHost = absl::FunctionRef<absl::Status(void* to, const std::byte* from, int64_t bytes)>;
// Copies data that is already in host memory, as a CopyToHost.
absl::Status CopyHostMemory(void* to, const std::byte* from, int64_t bytes);

// Writes the pieces, in the given order, to ShardFileName(rank, ranks) in `folder`, and flushes the file. Returns the
// file's entry for the manifest. Uses no memory besides the header and `staging`, which must have at least
// kWriteStagingBytes (engine/checkpoint/staging.h). REQUIRES: parts with wider elements come first.
absl::StatusOr<SavedFile> WriteShard(FileSystem& files, const std::string& folder, int64_t rank, int64_t ranks,
                                     absl::Span<const PieceSource> pieces, CopyToHost copy, absl::Span<char> staging);

}  // namespace shale
