// The head of a shard file, apart from any file.
//
//   frame ("SHALESHD", engine/checkpoint/framing.h) | zeros up to a multiple of 4,096 | pieces, one behind the other
//
// A piece is a run of elements of one part of one parameter, little-endian. The head has a checksum of its own, so that
// it can be trusted before the file's chunks are read; the manifest's checksums cover all of the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/checkpoint/manifest.h"
#include "kernels/element_range.h"

namespace shale {

inline constexpr int64_t kShardAlignment = 4096;
inline constexpr int64_t kMaxShardHeaderBytes = int64_t{64} << 20;
// A rank owns one run of each parameter, in at most four parts: this many take at most 28 MB in the file. Parsed they
// take some 200 bytes each, which is what bounds the memory that a hostile file can take.
inline constexpr int64_t kMaxShardPieces = 4 * kMaxSavedParameters;

struct ShardPiece {
  int32_t parameter = 0;  // Index into Manifest::parameters.
  SavedPart part = SavedPart::kValue;
  ElementRange range;        // Of the parameter; never empty.
  int64_t offset_bytes = 0;  // In the file.

  int64_t size_bytes() const { return (range.end - range.begin) * BytesPerElement(part); }
  bool operator==(const ShardPiece&) const = default;
};

struct ShardHeader {
  int64_t rank = 0;
  std::vector<ShardPiece> pieces;  // In the order of the bytes.
  int64_t size_bytes = 0;          // Of the file.

  bool operator==(const ShardHeader&) const = default;
};

// Lays `pieces` out behind one another and sets their offsets and the size of the file. Wide parts must come first.
// Returns the head, padded.
std::string SerializeShardHeader(ShardHeader& header);

// The bytes of the head of a file that begins with `bytes`, which hold at least a frame's head: what ParseShardHeader
// wants. Errors as there.
absl::StatusOr<int64_t> ShardHeadBytes(absl::string_view bytes);

// Any bytes are fine as input; `head` may be followed by more. InvalidArgument (without a path) for what is no such
// head, is damaged, has more than kMaxShardPieces, or does not fit a file of `file_bytes`: a range that is empty or
// cannot be counted, an element that does not lie at a multiple of its size, pieces that do not end where the file
// does. Unimplemented for another version.
absl::StatusOr<ShardHeader> ParseShardHeader(absl::string_view head, int64_t file_bytes);

}  // namespace shale
