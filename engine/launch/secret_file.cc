#include "engine/launch/secret_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "engine/text/quote.h"

namespace shale {

absl::Status CheckSecretFile(const std::string& path, absl::string_view what) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) return absl::OkStatus();
  const auto refused = [&](absl::string_view can, absl::string_view advice) {
    return absl::InvalidArgumentError(
        absl::StrCat("other users can ", can, " ", what, " in ", Quoted(path), "; ", advice));
  };
  if ((facts.st_mode & (S_IRGRP | S_IROTH)) != 0) return refused("read", "chmod 600 it");
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) return refused("write", "chmod 600 it");
  if (facts.st_uid != geteuid() && facts.st_uid != 0) return refused("write", "make a file of your own");
  // Whoever may write a folder can replace the files in it, unless it is like /tmp, where only their owners may. Links
  // are followed, because the folder of the file itself counts.
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  for (const std::filesystem::path& link : {real, std::filesystem::absolute(path, error)}) {
    struct stat folder = {};
    if (stat(link.parent_path().c_str(), &folder) != 0) continue;
    if ((folder.st_mode & S_IWOTH) != 0 && (folder.st_mode & S_ISVTX) == 0) {
      return refused("replace", "chmod o-w its folder");
    }
  }
  return absl::OkStatus();
}

}  // namespace shale
