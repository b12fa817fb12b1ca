// Applies overrides of single fields (path=value), which engine/api/job.h describes.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/config/errors.h"
#include "proto/job.pb.h"

namespace shale {

// Applies the overrides to `job` in order. Reports each one that cannot be applied, with "--set" as its location, and
// still applies the others.
void ApplyOverrides(absl::Span<const std::string> overrides, proto::Job* job, SpecErrors* errors);

}  // namespace shale
