// The operators of chat templates.
//
// Each function returns what Python and Jinja return. Each returns InvalidArgument without a line (TemplateError) where
// Python raises an exception, and names what is not supported.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/template_value.h"

namespace shale {

// Returns `a sign b`, for the signs of comparisons and arithmetic, "in" and "~".
absl::StatusOr<TemplateValue> ApplyBinary(absl::string_view sign, const TemplateValue& a, const TemplateValue& b);
// Returns value[index]; undefined if there is no such element.
absl::StatusOr<TemplateValue> ItemOf(const TemplateValue& value, const TemplateValue& index);
// Returns value[bounds[0] : bounds[1] : bounds[2]]. Bounds may be none or undefined.
absl::StatusOr<TemplateValue> SliceOf(const TemplateValue& value, const TemplateValue (&bounds)[3]);
// Returns what a loop iterates over: the elements of a list, the names of a dict, the characters of a string.
absl::StatusOr<TemplateValue::List> ElementsOf(const TemplateValue& value);

}  // namespace shale
