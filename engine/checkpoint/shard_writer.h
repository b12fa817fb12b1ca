// Writes the shard file of one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/manifest.h"
#include "engine/io/file_system.h"
#include "kernels/element_range.h"

namespace shale {

// Elements of one part of one parameter, in host memory.
struct PieceSource {
  int32_t parameter = 0;  // Index into Manifest::parameters.
  SavedPart part = SavedPart::kValue;
  ElementRange range;  // Of the parameter.
  const std::byte* data = nullptr;
};

// Writes the pieces, in the order given (wide parts first), to ShardFileName(rank, ranks) in `folder`, and flushes it.
// What it returns goes into the manifest. `staging`, of kWriteStagingBytes (engine/checkpoint/staging.h), is all the
// memory it takes besides the head.
absl::StatusOr<SavedFile> WriteShard(FileSystem& files, const std::string& folder, int64_t rank, int64_t ranks,
                                     absl::Span<const PieceSource> pieces, absl::Span<char> staging);

}  // namespace shale
