// CompiledFile: a file that is compiled in (compiled_files.bzl).
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shale {

struct CompiledFile {
  absl::string_view name, text;
};

}  // namespace shale
