// The files of a Hugging Face folder that go wherever its model goes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace shale {

struct HfFile {
  std::string name;
  std::string path;  // Where its bytes are, with links followed.
};

// The files of `folder` that make up a tokenizer, and generation_config.json, sorted by name. What has such a name and
// is no regular file (a folder of old tokenizers) is left out. InvalidArgument for a link to a file elsewhere, see
// ResolveInFolder; NotFound for a link to nothing, or if there is no such folder.
absl::StatusOr<std::vector<HfFile>> ListCopiedHfFiles(const std::string& folder);

}  // namespace shale
