// Values of chat templates as JSON.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/tokenize/template_value.h"

namespace shale {

// Returns a number as Python's repr does: the shortest digits that are the same number.
std::string PythonFloat(double value);
// Returns a value as JSON, in the form of transformers' `tojson`, on one line or, if `indent` is at least 0, on
// several. Returns InvalidArgument for what is no JSON.
absl::StatusOr<TemplateText> AsJson(const TemplateValue& value, int indent, TemplateBudget& budget);

}  // namespace shale
