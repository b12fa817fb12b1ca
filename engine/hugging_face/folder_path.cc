#include "engine/hugging_face/folder_path.h"

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::StatusOr<std::string> RealPath(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
  if (real == nullptr) return FileError(errno, "find", path);
  return std::string(real.get());
}

// Splits "a/b/c" into {"a/b", "c"}.
std::pair<std::string, std::string> Split(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {"", path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

bool IsIn(const std::string& path, const std::string& folder) {
  return absl::StartsWith(path, absl::EndsWith(folder, "/") ? folder : folder + "/");
}

}  // namespace

absl::StatusOr<std::string> ResolveInFolder(const std::string& folder, absl::string_view name) {
  SHALE_ASSIGN_OR_RETURN(const std::string root, RealPath(folder));
  const std::string path = JoinPath(folder, name);
  SHALE_ASSIGN_OR_RETURN(std::string real, RealPath(path));
  if (IsIn(real, root)) return real;
  const auto [snapshots, revision] = Split(root);
  const auto [model, snapshots_name] = Split(snapshots);
  if (snapshots_name == "snapshots" && IsIn(real, model + "/blobs")) return real;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is a link that leads out of its folder, to ", real, "; put the file itself there"));
}

}  // namespace shale
