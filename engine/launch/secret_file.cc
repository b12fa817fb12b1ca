#include "engine/launch/secret_file.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "engine/text/quote.h"

namespace shale {

absl::Status CheckSecretFile(const std::string& path, absl::string_view what) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0 || (facts.st_mode & (S_IRGRP | S_IROTH)) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("other users can read ", what, " in ", Quoted(path), "; chmod 600 it"));
}

}  // namespace shale
