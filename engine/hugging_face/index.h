// model.safetensors.index.json: which file of a folder holds which tensor.
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
  std::map<std::string, std::string> files;  // File name by tensor name.
};

// Any bytes are fine as input. InvalidArgument, without a path, for what ParseStrictJson refuses, for more than
// kMaxSafetensorsIndexBytes, for a weight_map that does not map names to strings, and for a file name that
// CheckShardName refuses. `metadata` is not looked at: it promises nothing that the files do not say themselves.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view text);

// A shard lies beside its index: no path, nothing hidden, no control characters, and the name of a safetensors file.
absl::Status CheckShardName(absl::string_view name);

}  // namespace shale
