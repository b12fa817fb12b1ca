// Renders a chat template.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenize/template_parser.h"
#include "engine/tokenize/template_value.h"

namespace shale {

// Returns what the statements write. They may read the elements of the dict `variables`. Returns InvalidArgument with
// the line for an error in the template, and for a template that takes too many steps or writes too much.
absl::StatusOr<std::string> RenderTemplate(const std::vector<TemplateStatement>& statements,
                                           const TemplateValue& variables);

}  // namespace shale
