// Parses and writes the header of a shard file, without access to any file.
//
//   frame ("SHALESHD", engine/files/checkpoint/framing.h) | zeros up to a multiple of 4,096 | the pieces, without gaps
//
// A piece is a range of elements of one part of one parameter, little-endian. A part has one element for each element
// of the parameter, or one for each block of them (SavedState::block). The header has its own checksum, so that it can
// be trusted before the file's chunks are read; the manifest's checksums cover the entire file.
//
// OpenSavedFile and what follows it open and check the files of a checkpoint, of every kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/checkpoint/manifest.h"
#include "engine/files/io/file.h"
#include "kernels/element_range.h"

namespace shale {

// Returns whether an error means that a checkpoint is damaged. A read that the system refuses, or another format
// version, does not count as damage.
bool IsDamage(const absl::Status& status);

// Opens a file of a checkpoint. Returns InvalidArgument for anything that is not a regular file. Links are refused too,
// because a checkpoint consists only of files in its folder.
absl::StatusOr<InputFile> OpenSavedFile(const std::string& path);

// Returns InvalidArgument, with the path, if the file's size differs from the manifest's.
absl::Status CheckSavedSize(const InputFile& file, const SavedFile& saved);

// Reads a chunk into `out` and verifies it. Returns the chunk's bytes, at the start of `out`, or DataLoss, with file
// and byte range, if the chunk is damaged.
absl::StatusOr<absl::string_view> ReadSavedChunk(const InputFile& file, const SavedFile& saved, int64_t chunk,
                                                 absl::Span<char> out);

inline constexpr int64_t kShardAlignment = 4096;
inline constexpr int64_t kMaxShardHeaderBytes = int64_t{64} << 20;
// A rank owns one range of each parameter, saved in at most six parts: two of the value, and up to four states of the
// optimizer (kMaxUpdateStates). This many pieces take at most 42 MB in the file. Parsed, each takes about 200 bytes, so
// the limit bounds the memory that a hostile file can take.
inline constexpr int64_t kMaxShardPieces = 6 * kMaxSavedParameters;

struct ShardPiece {
  int32_t parameter = 0;  // Index into Manifest::parameters.
  SavedPart part = SavedPart::kValue;
  ElementRange range;         // Elements of the part; never empty.
  int64_t element_bytes = 4;  // Bytes per element of the part.
  int64_t offset_bytes = 0;   // Offset in the file.

  int64_t size_bytes() const { return (range.end - range.begin) * element_bytes; }
  bool operator==(const ShardPiece&) const = default;
};

struct ShardHeader {
  int64_t rank = 0;
  std::vector<ShardPiece> pieces;  // In the order in which they lie in the file.
  int64_t size_bytes = 0;          // Size of the file.

  bool operator==(const ShardHeader&) const = default;
};

// Lays out header.pieces without gaps: sets their offsets and the size of the file. Returns the bytes of the header
// with its padding. REQUIRES: parts with wider elements come first.
std::string SerializeShardHeader(ShardHeader& header);

// Returns the size of the header with its padding, which is how many bytes ParseShardHeader needs. `bytes` are the
// first bytes of the file, at least kFrameHeadBytes. Returns the errors of FramedBytes.
absl::StatusOr<int64_t> ShardHeadBytes(absl::string_view bytes);

// Parses a header. Accepts any bytes; more bytes may follow the header in `head`. `states` are those of the manifest.
// Returns InvalidArgument, without a path, for bytes that are not a shard header, are damaged, have more than
// kMaxShardPieces, or do not fit a file of `file_bytes`: an unknown part, a range that is empty or negative, an element
// that does not lie at a multiple of its size, pieces that do not end at the end of the file. Returns Unimplemented for
// another version.
absl::StatusOr<ShardHeader> ParseShardHeader(absl::string_view head, int64_t file_bytes,
                                             absl::Span<const SavedState> states);

}  // namespace shale
