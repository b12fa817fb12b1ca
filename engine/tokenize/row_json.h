// Reads a line of JSON Lines into values whose members keep their order.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/template_value.h"

namespace shale {

// Returns the dict that a line is. Accepts any bytes. Returns InvalidArgument for bytes that are not UTF-8, and the
// errors of ParseStrictJson.
absl::StatusOr<TemplateValue> ParseRowJson(absl::string_view line);

}  // namespace shale
