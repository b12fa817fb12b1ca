// Writes what a tool makes into a file that its command line names.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale {

// Writes `contents` to the file at `path`, replacing what is there. Unlike WriteFileDurably (engine/io/file.h), also
// writes to what is not a regular file, such as /dev/stdout. The error is one line: "cannot write a/b.json: No such
// file or directory".
absl::Status WriteOutput(const std::string& path, absl::string_view contents);

}  // namespace shale
