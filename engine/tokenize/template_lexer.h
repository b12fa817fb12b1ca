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
  std::string text;  // Of a string, without quotes and escapes.
  int64_t number = 0;
  int line = 1;
};

// Removes white space around tags as transformers asks Jinja to (trim_blocks, lstrip_blocks), and comments. The last
// token is kEnd. Returns InvalidArgument with the line.
absl::StatusOr<std::vector<TemplateToken>> LexTemplate(absl::string_view source);

}  // namespace shale
