// Reads model.safetensors.index.json, which maps the tensors of a folder to its files.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

constexpr int64_t kMaxSafetensorsIndexBytes = int64_t{64} << 20;

struct SafetensorsIndex {
  std::map<std::string, std::string> files;  // File names, keyed by tensor name.
};

// Parses the text of an index. Accepts any bytes. Returns InvalidArgument, without a path, for text that
// ParseStrictJson refuses or that has more than kMaxSafetensorsIndexBytes, for a weight_map that does not map names to
// strings, and for a file name that CheckShardName refuses. Ignores `metadata`, which says nothing that the files do
// not say themselves.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view text);

// Returns InvalidArgument unless `name` is the name of a safetensors file beside the index: not a path, not hidden, no
// control characters.
absl::Status CheckShardName(absl::string_view name);

}  // namespace shale
