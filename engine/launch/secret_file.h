// Files that only their owner may read.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale {

// Returns InvalidArgument if other users can read the file, whose content `what` names. A missing file is OK.
absl::Status CheckSecretFile(const std::string& path, absl::string_view what);

}  // namespace shale
