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

// Elements of one part of one parameter, wherever they lie.
struct PieceSource {
  int32_t parameter = 0;  // Index into Manifest::parameters.
  SavedPart part = SavedPart::kValue;
  ElementRange range;  // Of the parameter.
  const std::byte* data = nullptr;
};

// Brings data to host memory; it is valid when the call returns.
using CopyToHost = absl::FunctionRef<absl::Status(void* to, const std::byte* from, int64_t bytes)>;
// For data that is there.
absl::Status CopyHostMemory(void* to, const std::byte* from, int64_t bytes);

// Writes the pieces, in the order given (wide parts first), to ShardFileName(rank, ranks) in `folder`, and flushes it.
// They come through `staging`, of kWriteStagingBytes (engine/checkpoint/staging.h), which is all the memory that it
// takes besides the head. What it returns goes into the manifest.
absl::StatusOr<SavedFile> WriteShard(FileSystem& files, const std::string& folder, int64_t rank, int64_t ranks,
                                     absl::Span<const PieceSource> pieces, CopyToHost copy, absl::Span<char> staging);

}  // namespace shale
