// The libraries that CUDA's libraries open by themselves, by bare name, when they first need them. A bare name is
// searched for on the loader's path and, if the opening library has a RUNPATH, in its own folder. The folders of the
// Python packages and those of SHALE_CUDA_LIBRARIES are not on the loader's path, and not every library has a RUNPATH.
// So SharedLibrary::Open also opens the companions that lie beside a library: the loader then finds them loaded under
// the name that it is asked for.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace shale {

// Opens the companions of a library that is loaded from `path`, and theirs in turn. They are searched for in its folder
// and, if `path` is a link, in that of the file itself. Their versions begin with that of `path`: beside libnvrtc.so.13
// lies libnvrtc-builtins.so.13.0. Returns NotFound if one is missing without which the library does not work, or if one
// does not load.
absl::Status OpenCompanions(const std::string& path);

}  // namespace shale
