// Renders a chat template.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/chat/template_parser.h"
#include "engine/text/chat/template_value.h"

namespace shale {

struct RenderedTemplate {
  TemplateText text;
  // What the statements {% generation %} wrote: bytes [first, second) of the text, in order.
  std::vector<std::pair<size_t, size_t>> generations;
  int64_t steps = 0;  // How many steps it took.
};

// Returns what the statements write. They may read the elements of the dict `variables`, whose texts have `input_bytes`
// bytes, and the date (ApplyFunction). Returns InvalidArgument with the line for an error in the template, and for a
// template that takes too many steps or builds too much (TemplateBudget).
absl::StatusOr<RenderedTemplate> RenderTemplate(const std::vector<TemplateStatement>& statements,
                                                const TemplateValue& variables, const std::string& date,
                                                double input_bytes);

}  // namespace shale
