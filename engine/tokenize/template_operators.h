// The operators of chat templates.
//
// Each function returns what Python and Jinja return. Each returns InvalidArgument without a line (TemplateError) where
// Python raises an exception, and names what is not supported. Each takes what it builds and reads from the budget.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/template_value.h"

namespace shale {

// Returns `a sign b`, for the signs of comparisons and arithmetic, "in" and "~".
absl::StatusOr<TemplateValue> ApplyBinary(absl::string_view sign, const TemplateValue& a, const TemplateValue& b,
                                          TemplateBudget& budget);
// Returns value.name: the method of that name if the value has one, as Python does, then the element.
absl::StatusOr<TemplateValue> AttributeOf(const TemplateValue& value, const std::string& name, TemplateBudget& budget);
// Returns value[index]: the element, then a method; undefined if there is neither.
absl::StatusOr<TemplateValue> ItemOf(const TemplateValue& value, const TemplateValue& index, TemplateBudget& budget);
// Returns value[bounds[0] : bounds[1] : bounds[2]]. Bounds may be none or undefined.
absl::StatusOr<TemplateValue> SliceOf(const TemplateValue& value, const TemplateValue (&bounds)[3],
                                      TemplateBudget& budget);
// Returns what a loop iterates over: the elements of a list, the names of a dict, the characters of a string. Takes the
// elements of a generator away.
absl::StatusOr<TemplateValue::List> ElementsOf(const TemplateValue& value, TemplateBudget& budget);
// Returns how many elements that would be, without making them.
absl::StatusOr<int64_t> CountOf(const TemplateValue& value, TemplateBudget& budget);

// Returns bytes [begin, end) of a string.
absl::StatusOr<TemplateValue> PartOf(const TemplateValue& value, size_t begin, size_t end, TemplateBudget& budget);
// Returns where `one` begins in `all` at or after `from`, or npos. Takes linear time for any input.
size_t FindText(absl::string_view all, absl::string_view one, size_t from);

}  // namespace shale
