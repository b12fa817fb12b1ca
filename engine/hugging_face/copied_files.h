// Finds the files of a Hugging Face folder that are copied along with its model.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace shale {

struct HfFile {
  std::string name;
  std::string path;  // The real path, with links resolved.
};

// Returns the files of `folder` that make up a tokenizer, and generation_config.json, sorted by name. Omits entries of
// such names that are not regular files (such as a folder of old tokenizers). Returns InvalidArgument for a link to a
// file elsewhere (see ResolveInFolder), and NotFound if a link's target or the folder does not exist.
absl::StatusOr<std::vector<HfFile>> ListCopiedHfFiles(const std::string& folder);

}  // namespace shale
