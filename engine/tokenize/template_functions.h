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

// Calls raise_exception, namespace or range.
absl::StatusOr<TemplateValue> ApplyFunction(absl::string_view name, const TemplateArguments& arguments);
// Calls a method of a string or of a dict. Refuses to change the case of letters beyond ASCII.
absl::StatusOr<TemplateValue> ApplyMethod(absl::string_view name, const TemplateValue& self,
                                          const TemplateArguments& arguments);

}  // namespace shale
