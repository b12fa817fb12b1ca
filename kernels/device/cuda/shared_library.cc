#include "kernels/device/cuda/shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/device/cuda/library_companions.h"
#include "kernels/device/cuda/open_library.h"

namespace shale {
namespace {

namespace fs = std::filesystem;

// Returns the folders that an element of LibrarySearch::folders stands for: itself, and nvidia/*/lib below it, sorted.
std::vector<std::string> Expand(const std::string& folder) {
  std::vector<std::string> expanded;
  std::error_code error;
  for (fs::directory_iterator at(fs::path(folder) / "nvidia", error), end; !error && at != end; at.increment(error)) {
    const fs::path libraries = at->path() / "lib";
    std::error_code ignored;
    if (fs::is_directory(libraries, ignored)) expanded.push_back(libraries.string());
  }
  std::sort(expanded.begin(), expanded.end());
  expanded.insert(expanded.begin(), folder);
  return expanded;
}

// Loads `path`, which may be a bare name, with its companions. Closes a library that lacks one: while it is loaded, the
// loader would take it for a complete one in another place.
absl::StatusOr<void*> Load(const std::string& path) {
  void* handle = OpenLibrary(path);
  if (handle == nullptr) return absl::NotFoundError(absl::StrCat(path, " does not load: ", LoaderError()));
  link_map* loaded = nullptr;
  absl::Status status = dlinfo(handle, RTLD_DI_LINKMAP, &loaded) == 0 ? OpenCompanions(loaded->l_name)
                                                                      : absl::InternalError(LoaderError());
  if (status.ok()) return handle;
  (void)dlclose(handle);
  return status;
}

}  // namespace

LibrarySearch LibrarySearch::FromEnvironment() {
  LibrarySearch search;
  if (const char* folders = std::getenv("SHALE_CUDA_LIBRARIES")) {
    search.folders = absl::StrSplit(folders, ':', absl::SkipEmpty());
  }
  if (const char* home = std::getenv("CUDA_HOME")) search.cuda_home = home;
  return search;
}

absl::StatusOr<SharedLibrary> SharedLibrary::Open(const LibraryName& name, const LibrarySearch& search) {
  std::vector<std::string> folders, obstacles;
  for (const std::string& folder : search.folders) {
    for (std::string& expanded : Expand(folder)) folders.push_back(std::move(expanded));
  }
  if (!search.cuda_home.empty()) folders.push_back((fs::path(search.cuda_home) / "lib64").string());
  for (const std::string& folder : folders) {
    // An absolute path, even if the folder is relative: for a bare name the loader would search its own path.
    const std::string path = (fs::absolute(folder) / name.file).string();
    std::error_code ignored;
    if (!fs::exists(path, ignored)) continue;
    const absl::StatusOr<void*> handle = Load(path);
    if (handle.ok()) return SharedLibrary(name, path, *handle);
    obstacles.push_back(absl::StrCat("; ", handle.status().message()));
  }
  std::string places = absl::StrJoin(folders, ", ");
  if (search.loader_path) {
    const absl::StatusOr<void*> handle = Load(name.file);
    if (handle.ok()) return SharedLibrary(name, name.file, *handle);
    // That there is no such file is the usual reason, and the NotFound error below says that anyway.
    const std::string missing =
        absl::StrCat(name.file, " does not load: ", name.file, ": cannot open shared object file: No such file");
    if (!absl::StartsWith(handle.status().message(), missing)) {
      obstacles.push_back(absl::StrCat("; on the loader's path, ", handle.status().message()));
    }
    absl::StrAppend(&places, places.empty() ? "" : ", ", "the loader's path (LD_LIBRARY_PATH, ldconfig)");
  }
  return absl::NotFoundError(absl::StrCat(
      name.title, ": wanted ", name.file, ", not found in ", places.empty() ? "any place: none was given" : places,
      absl::StrJoin(obstacles, ""), ". Install ", name.source,
      ", or name the folder where it lies in SHALE_CUDA_LIBRARIES (several are separated by colons; the site-packages ",
      "of a Python environment will do)"));
}

absl::Status SharedLibrary::Find(const char* symbol, void*& address) const {
  address = dlsym(handle_, symbol);
  if (address != nullptr) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(name_.title, ": ", path_, " has no ", symbol,
                                          ", so it is the wrong version. Install ", name_.source,
                                          ", or name its folder in SHALE_CUDA_LIBRARIES"));
}

}  // namespace shale
