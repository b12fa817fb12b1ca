// Resolves file names within an untrusted folder.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Returns the real path, with links resolved, of the file `name` (not a path) in `folder`. A link may lead to a file in
// the folder itself. If the folder is a snapshot in the cache of huggingface_hub (models--X/snapshots/REVISION, whose
// files are links into models--X/blobs), a link may also lead to one of those blobs. Returns InvalidArgument for a link
// that leads elsewhere, and NotFound if there is no such file.
absl::StatusOr<std::string> ResolveInFolder(const std::string& folder, absl::string_view name);

}  // namespace shale
