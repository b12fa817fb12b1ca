// Opens and checks the files of a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/checkpoint/manifest.h"
#include "engine/io/file.h"

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

}  // namespace shale
