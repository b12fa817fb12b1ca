// What chat templates compute with their values: operators, functions, methods, filters and tests.
//
// Each function returns what Python and Jinja return. Each returns InvalidArgument without a line (TemplateError) where
// Python raises, and for what the budget does not allow.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/chat/template_value.h"

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

// The arguments of a function, a method, a filter or a test.
struct TemplateArguments {
  std::vector<TemplateValue> values;
  std::vector<std::pair<std::string, TemplateValue>> keywords;

  // Returns the argument at `index`, or else the keyword `name`, or null if there is neither.
  const TemplateValue* Find(size_t index, absl::string_view name) const;
  // Does the same for an argument that must be a string. `of` names the function in the error.
  absl::StatusOr<std::string> Text(size_t index, absl::string_view name, absl::string_view of) const;
};

// Returns whether a template of transformers may call the function, and so finds it defined.
bool IsTemplateFunction(absl::string_view name);
// Calls raise_exception, namespace, range or strftime_now. The last returns `date`, "2026-11-28", at midnight; it is
// refused if that is empty.
absl::StatusOr<TemplateValue> ApplyFunction(absl::string_view name, const TemplateArguments& arguments,
                                            const std::string& date, TemplateBudget& budget);
// Returns a string as Jinja's filter `title` does: a letter is large behind white space and - ( { [ <, and else small.
// Refuses letters beyond ASCII.
absl::StatusOr<TemplateValue> JinjaTitle(const TemplateValue& text, TemplateBudget& budget);
// Calls a method of a string or of a dict. Refuses to change the case of letters beyond ASCII.
absl::StatusOr<TemplateValue> ApplyMethod(absl::string_view name, const TemplateValue& self,
                                          const TemplateArguments& arguments, TemplateBudget& budget);

// Returns `value | name(arguments)`.
absl::StatusOr<TemplateValue> ApplyFilter(absl::string_view name, const TemplateValue& value,
                                          const TemplateArguments& arguments, TemplateBudget& budget);
// Returns `value is name(arguments)`.
absl::StatusOr<bool> ApplyTest(absl::string_view name, const TemplateValue& value, const TemplateArguments& arguments,
                               TemplateBudget& budget);

// Returns a number as Python's repr does: the shortest digits that are the same number.
std::string PythonFloat(double value);
// Returns a value as JSON, in the form of transformers' `tojson`, on one line or, if `indent` is at least 0, on
// several. Returns InvalidArgument for what is no JSON.
absl::StatusOr<TemplateText> AsJson(const TemplateValue& value, int indent, TemplateBudget& budget);

// Returns midnight of a day, "2026-11-28", as Python's strftime writes it in the locale C. Returns InvalidArgument if
// `date` is empty or no day, and for directives that depend on a place or on a system.
absl::StatusOr<std::string> FormatTemplateDate(const std::string& date, absl::string_view format);

}  // namespace shale
