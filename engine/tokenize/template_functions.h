// The operators, filters, tests and methods of chat templates.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/template_value.h"

namespace shale {

struct TemplateArguments {
  std::vector<TemplateValue> values;
  std::vector<std::pair<std::string, TemplateValue>> keywords;
};

// Each returns what Python and Jinja return, and InvalidArgument without a place: for a function that is not supported,
// by name, and where Python would raise an exception. Case is changed of ASCII only; other letters are refused.
absl::StatusOr<TemplateValue> ApplyBinary(absl::string_view sign, const TemplateValue& a, const TemplateValue& b);
absl::StatusOr<TemplateValue> ApplyFilter(absl::string_view name, const TemplateValue& value,
                                          const TemplateArguments& arguments);
absl::StatusOr<bool> ApplyTest(absl::string_view name, const TemplateValue& value, const TemplateArguments& arguments);
// A method of a string or a mapping.
absl::StatusOr<TemplateValue> ApplyMethod(absl::string_view name, const TemplateValue& self,
                                          const TemplateArguments& arguments);
// One of the functions raise_exception, namespace and range.
absl::StatusOr<TemplateValue> ApplyFunction(absl::string_view name, const TemplateArguments& arguments);
absl::StatusOr<TemplateValue> ItemOf(const TemplateValue& value, const TemplateValue& index);
// Bounds may be none or undefined.
absl::StatusOr<TemplateValue> SliceOf(const TemplateValue& value, const TemplateValue (&bounds)[3]);
// Returns what a loop goes through: the elements of a list, the names of a mapping, the characters of a string.
absl::StatusOr<TemplateValue::List> ElementsOf(const TemplateValue& value);

}  // namespace shale
