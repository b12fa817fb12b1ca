// The files of a checkpoint, as its readers open and check them.
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

// Whether an error tells of a damaged checkpoint, rather than of a system that would not let us read it or of a newer
// program that wrote it.
bool IsDamage(const absl::Status& status);

// Refuses links too (InvalidArgument): a checkpoint is what lies in its folder.
absl::StatusOr<InputFile> OpenSavedFile(const std::string& path);

// InvalidArgument, with the path, for a file of another size than the manifest says.
absl::Status CheckSavedSize(const InputFile& file, const SavedFile& saved);

// Reads a chunk and verifies it; the bytes are at the start of `out`. DataLoss, with file and place, if it is damaged.
absl::StatusOr<absl::string_view> ReadSavedChunk(const InputFile& file, const SavedFile& saved, int64_t chunk,
                                                 absl::Span<char> out);

}  // namespace shale
