// The functions and methods of chat templates. Errors are those of engine/tokenize/template_operators.h.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/template_value.h"

namespace shale {

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

}  // namespace shale
