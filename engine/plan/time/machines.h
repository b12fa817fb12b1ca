// The profiles that are compiled in: the files of tools/machines, by the names of the files.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shale {

struct CompiledProfile {
  absl::string_view name, text;
};

extern const absl::Span<const CompiledProfile> kCompiledProfiles;

}  // namespace shale
