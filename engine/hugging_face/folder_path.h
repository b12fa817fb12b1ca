// Files of a folder that came from elsewhere.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// The real path of the file `name` (no path) of `folder`, with links followed. They may lead to the folder's own files,
// and where the folder is a snapshot in the cache of huggingface_hub (models--X/snapshots/REVISION, whose files are
// links into models--X/blobs) to those. InvalidArgument for a link that leads elsewhere; NotFound if there is no such
// file.
absl::StatusOr<std::string> ResolveInFolder(const std::string& folder, absl::string_view name);

}  // namespace shale
