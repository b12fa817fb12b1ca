// The folder in which programs keep what they measured, for later runs of the same user.
#pragma once

#include <string>

namespace shale {

// Returns the folder of the user's caches that belongs to Shale: $XDG_CACHE_HOME/shale or $HOME/.cache/shale. Empty if
// neither variable is an absolute path.
std::string UserCacheFolder();

}  // namespace shale
