// Overrides of single fields: path=value, as engine/config/parse.h describes them.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/config/errors.h"
#include "proto/job.pb.h"

namespace shale {

// Applies the overrides to `job` in order. Reports each one that cannot be applied, located at "--set"; those before
// and after it are applied all the same.
void ApplyOverrides(absl::Span<const std::string> overrides, proto::Job* job, SpecErrors* errors);

}  // namespace shale
