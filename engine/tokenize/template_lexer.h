// Cuts a chat template into text and the tokens of its tags.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

struct TemplateToken {
  enum class Kind {
    kData,           // Text between tags.
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kName,
    kString,
    kInteger,
    kOperator,
    kEnd,  // Of the template.
  };
  Kind kind = Kind::kEnd;
  std::string text;  // The text of the token. A kString has neither quotes nor escapes.
  int64_t number = 0;
  int line = 1;
};

// Returns the tokens of a template; the last one is kEnd. Removes comments, and white space around tags as transformers
// tells Jinja to (trim_blocks, lstrip_blocks). Returns InvalidArgument with the line.
absl::StatusOr<std::vector<TemplateToken>> LexTemplate(absl::string_view source);

}  // namespace shale
