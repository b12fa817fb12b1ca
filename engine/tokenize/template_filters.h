// The filters and tests of chat templates. Errors are those of engine/tokenize/template_operators.h.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/template_functions.h"
#include "engine/tokenize/template_value.h"

namespace shale {

// Returns `value | name(arguments)`.
absl::StatusOr<TemplateValue> ApplyFilter(absl::string_view name, const TemplateValue& value,
                                          const TemplateArguments& arguments, TemplateBudget& budget);
// Returns `value is name(arguments)`.
absl::StatusOr<bool> ApplyTest(absl::string_view name, const TemplateValue& value, const TemplateArguments& arguments,
                               TemplateBudget& budget);

}  // namespace shale
