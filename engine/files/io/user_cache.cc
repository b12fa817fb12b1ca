#include "engine/files/io/user_cache.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace shale {

std::string UserCacheFolder() {
  const auto absolute = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return value != nullptr && value[0] == '/' ? std::string(value) : std::string();
  };
  if (const std::string caches = absolute("XDG_CACHE_HOME"); !caches.empty()) return absl::StrCat(caches, "/shale");
  if (const std::string home = absolute("HOME"); !home.empty()) return absl::StrCat(home, "/.cache/shale");
  return "";
}

}  // namespace shale
