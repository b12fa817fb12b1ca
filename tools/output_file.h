// Writes the output of a tool to a file that its command line names.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale {

// Writes `contents` to the file at `path`, replacing what is there. Unlike WriteFileDurably (engine/files/io/file.h),
// it can also write to files that are not regular, such as /dev/stdout. The error is one line: "cannot write a/b.json:
// No such file or directory".
absl::Status WriteOutput(const std::string& path, absl::string_view contents);

}  // namespace shale
