// Files that only their owner may read and write.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale {

// Returns InvalidArgument if other users can read the file, whose content `what` names, or can choose what it holds:
// because they can write it, own it, or can replace it in its folder. Users that could do anything anyway (root) are
// not others. A missing file is OK.
absl::Status CheckSecretFile(const std::string& path, absl::string_view what);

}  // namespace shale
