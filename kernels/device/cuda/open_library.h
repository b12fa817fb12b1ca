// The loader's calls, as SharedLibrary and OpenCompanions make them.
#pragma once

#include <dlfcn.h>

#include <string>

namespace shale {

// Returns null if the library cannot be loaded; LoaderError then says why. RTLD_NOW reports missing symbols here.
// RTLD_LOCAL keeps the library's symbols from binding ours.
inline void* OpenLibrary(const std::string& path) { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); }

inline std::string LoaderError() {
  const char* error = dlerror();
  return error == nullptr ? "unknown error" : error;
}

}  // namespace shale
